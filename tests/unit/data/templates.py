"""Chat templates in the manner of the families: their structure, in words of our own."""

_CALLS = (
    "{%- for c in m.tool_calls %}{%- if c.function %}{%- set c = c.function %}"
    '{%- endif %}{{- "\n<tool_call>\n{\\"name\\": '
    '\\"" + c.name + "\\", \\"arguments\\": " }}'
    "{%- if c.arguments is string %}{{- c.arguments }}{%- else %}{{- c.arguments | tojson }}{%- endif %}"
    '{{- "}\n</tool_call>" }}{%- endfor %}'
)

_OFFER = (
    "{%- if tools %}{{- '<|im_start|>system\n' }}"
    "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}"
    "{%- endif %}{{- '# Tools' }}{%- for t in tools %}{{- '\n' + (t | tojson) }}{%- endfor %}{{- '<|im_end|>\n' }}"
)

#: A system prompt of its own where none is written; roles it does not know are passed over.
QWEN25 = (
    _OFFER + "{%- elif messages[0]['role'] == 'system' %}"
    "{{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>system\nBe of help.<|im_end|>\n' }}{%- endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{%- elif m.role == 'assistant' %}{{- '<|im_start|>assistant' }}"
    "{%- if m.content %}{{- '\n' + m.content }}{%- endif %}" + _CALLS + "{{- '<|im_end|>\n' }}"
    "{%- elif m.role == 'tool' %}"
    "{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)

#: Reasoning is written behind the user's last question only, and is cut out of earlier contents.
QWEN3 = (
    _OFFER
    + "{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}"
    "{%- endif %}"
    "{%- set ns = namespace(looking=true, asked=messages|length - 1) %}"
    "{%- for m in messages[::-1] %}{%- set at = (messages|length - 1) - loop.index0 %}"
    "{%- if ns.looking and m.role == 'user' and not m.content.startswith('<tool_response>') %}"
    "{%- set ns.looking = false %}{%- set ns.asked = at %}{%- endif %}{%- endfor %}"
    "{%- for m in messages %}{%- set content = m.content %}"
    "{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
    "{{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}"
    "{%- elif m.role == 'assistant' %}{%- set thought = '' %}"
    "{%- if m.reasoning_content is string %}{%- set thought = m.reasoning_content %}"
    "{%- elif '</think>' in content %}"
    "{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{{- '<|im_start|>assistant\n' }}"
    "{%- if loop.index0 > ns.asked and (loop.last or thought) %}"
    "{{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}"
    "{%- else %}{{- content }}{%- endif %}" + _CALLS + "{{- '<|im_end|>\n' }}"
    "{%- elif m.role == 'tool' %}"
    "{{- '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)

#: The system prompt stands in the first user's turn; there are users and assistants, in turn.
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set turns = messages[1:] %}{% set told = messages[0]['content'] %}"
    "{% else %}{% set turns = messages %}{% set told = false %}{% endif %}"
    "{% for m in turns %}"
    "{% if loop.index0 == 0 and told %}{% set content = '<<SYS>>\n' + told + '\n<</SYS>>\n\n' + m['content'] %}"
    "{% else %}{% set content = m['content'] %}{% endif %}"
    "{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)

#: Contents are trimmed, tools stand in the first user's turn, a call is written alone, results as JSON.
LLAMA31 = (
    "{{- bos_token }}{%- if messages[0]['role'] == 'system' %}{%- set told = messages[0]['content'] | trim %}"
    "{%- set messages = messages[1:] %}{%- else %}{%- set told = '' %}{%- endif %}"
    "{{- '<|start|>system<|end|>\n\nIt is 1 May.\n\n' + told + '<|eot|>' }}"
    "{%- if tools %}{%- set first = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}"
    "{{- '<|start|>user<|end|>\n\nThese may be called.\n\n' }}"
    "{%- for t in tools %}{{- t | tojson(indent=4) + '\n\n' }}{%- endfor %}{{- first + '<|eot|>' }}{%- endif %}"
    "{%- for m in messages %}"
    "{%- if not (m.role == 'tool' or m.tool_calls) %}"
    "{{- '<|start|>' + m['role'] + '<|end|>\n\n' + m['content'] | trim + '<|eot|>' }}"
    "{%- elif m.tool_calls %}"
    "{%- if m.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}"
    "{%- set c = m.tool_calls[0].function %}{{- '<|start|>assistant<|end|>\n\n' }}"
    "{{- '{\"name\": \"' + c.name + '\", \"parameters\": ' }}{{- c.arguments | tojson }}{{- '}<|eot|>' }}"
    "{%- else %}{{- '<|start|>ipython<|end|>\n\n' }}{{- m.content | tojson }}{{- '<|eot|>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start|>assistant<|end|>\n\n' }}{%- endif %}"
)

#: The system prompt and the tools stand before the last question; roles alternate; calls need identifiers of nine.
MISTRAL = (
    "{%- if messages[0]['role'] == 'system' %}{%- set told = messages[0]['content'] %}{%- set turns = messages[1:] %}"
    "{%- else %}{%- set turns = messages %}{%- endif %}"
    "{%- set users = turns | selectattr('role', 'equalto', 'user') | list %}{{- bos_token }}"
    "{%- for m in turns %}"
    "{%- if m.role == 'user' %}"
    "{%- if tools and m == users[-1] %}"
    "{{- '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}"
    "{%- if loop.last and told is defined or (m == users[-1] and told is defined) %}"
    "{{- '[INST] ' + told + '\n\n' + m.content + '[/INST]' }}"
    "{%- else %}{{- '[INST] ' + m.content + '[/INST]' }}{%- endif %}"
    "{%- elif m.tool_calls %}{{- '[TOOL_CALLS] [' }}{%- for c in m.tool_calls %}"
    "{{- (c.function | tojson)[:-1] }}"
    "{%- if c.id is not defined or c.id | length != 9 %}"
    "{{- raise_exception('an identifier has nine letters') }}{%- endif %}"
    "{{- ', \"id\": \"' + c.id + '\"}' }}{%- endfor %}{{- ']' + eos_token }}"
    "{%- elif m.role == 'assistant' %}{{- ' ' + m.content | trim + eos_token }}"
    "{%- elif m.role == 'tool' %}{{- '[TOOL_RESULTS] {\"content\": ' + m.content | string + '}[/TOOL_RESULTS]' }}"
    "{%- else %}{{- raise_exception('a role of no kind') }}{%- endif %}{%- endfor %}"
)

#: The assistant is called the model, contents are trimmed, roles alternate.
GEMMA = (
    "{{ bos_token }}{%- if messages[0]['role'] == 'system' %}{%- set told = messages[0]['content'] + '\n\n' %}"
    "{%- set turns = messages[1:] %}{%- else %}{%- set told = '' %}{%- set turns = messages %}{%- endif %}"
    "{%- for m in turns %}"
    "{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{%- endif %}"
    "{{ '<|im_start|>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' + (told if loop.first else '') }}"
    "{{ m['content'] | trim }}{{ '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>model\n' }}{%- endif %}"
)

#: Every role is written as it is named.
PHI = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)

#: Arguments of calls are text; all before `</think>` is cut off.
DEEPSEEK = (
    "{% set ns = namespace(told='') %}{%- for m in messages %}{%- if m['role'] == 'system' %}"
    "{%- set ns.told = m['content'] %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.told }}"
    "{%- for m in messages %}{%- if m['role'] == 'user' %}{{ '<|User|>' + m['content'] }}{%- endif %}"
    "{%- if m['role'] == 'assistant' and m['tool_calls'] %}{%- for c in m['tool_calls'] %}"
    "{{ '<|call|>' + c['type'] + '<|sep|>' + c['function']['name'] }}"
    "{{ '\n```json\n' + c['function']['arguments'] + '\n```' }}"
    "{%- endfor %}{{ eos_token }}{%- elif m['role'] == 'assistant' %}{%- set content = m['content'] %}"
    "{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}"
    "{{ '<|Assistant|>' + content + eos_token }}{%- endif %}"
    "{%- if m['role'] == 'tool' %}{{ '<|result|>' + m['content'] }}{%- endif %}{%- endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|>' }}{% endif %}"
)

#: Channels: reasoning and calls of the last turn stand in messages of their own, and it ends in another token.
HARMONY = (
    "{%- if messages[0].role in ['developer', 'system'] %}{%- set told = messages[0].content %}"
    "{%- set turns = messages[1:] %}{%- else %}{%- set told = '' %}{%- set turns = messages %}{%- endif %}"
    "{{- '<|start|>developer<|message|># Instructions\n\n' + told + '<|end|>' }}"
    "{%- set last = namespace(call=none) %}{%- for m in turns %}"
    "{%- if m.role == 'assistant' %}{%- if m.tool_calls %}{%- set c = m.tool_calls[0].function %}"
    "{%- if m.thinking %}{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{%- endif %}"
    "{{- '<|start|>assistant to=functions.' + c.name + '<|channel|>commentary json<|message|>' }}"
    "{{- c.arguments | tojson }}{{- '<|call|>' }}{%- set last.call = c.name %}"
    "{%- elif loop.last and not add_generation_prompt %}"
    "{%- if m.thinking %}{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{%- endif %}"
    "{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '</s>' }}"
    "{%- else %}{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}{%- endif %}"
    "{%- elif m.role == 'tool' %}"
    "{{- '<|start|>functions.' + last.call + ' to=assistant<|channel|>commentary<|message|>' }}"
    "{{- m.content | tojson }}{{- '<|end|>' }}"
    "{%- elif m.role == 'user' %}{{- '<|start|>user<|message|>' + m.content + '<|end|>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"
)

#: Arguments one by one, and a turn has no end of its own.
GLM = (
    "{{ '[gMASK]<sop>' }}{%- if tools %}<|system|>{% for t in tools %}{{ '\n' + (t | tojson(ensure_ascii=False)) }}"
    "{% endfor %}{% endif %}"
    "{%- for m in messages %}{%- if m.role == 'user' %}{{ '<|user|>\n' + m.content }}"
    "{%- elif m.role == 'system' %}{{ '<|system|>\n' + m.content }}"
    "{%- elif m.role == 'assistant' %}{{ '<|assistant|>' }}{%- if m.content.strip() %}{{ '\n' + m.content.strip() }}"
    "{%- endif %}{% if m.tool_calls %}{% for c in m.tool_calls %}{% set c = c.function %}{{ '\n<tool_call>' + c.name }}"
    "{% for k, v in c.arguments.items() %}{{ '\n<arg_key>' + k + '</arg_key>\n<arg_value>' }}"
    "{{ v | tojson(ensure_ascii=False) if v is not string else v }}{{ '</arg_value>' }}"
    "{% endfor %}{{ '\n</tool_call>' }}"
    "{% endfor %}{% endif %}"
    "{%- elif m.role == 'tool' %}{{ '<|observation|>\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{ '<|assistant|>' }}{%- endif %}"
)

ZEPHYR = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '<|user|>\n' + m['content'] + eos_token }}"
    "{% elif m['role'] == 'system' %}{{ '<|system|>\n' + m['content'] + eos_token }}"
    "{% elif m['role'] == 'assistant' %}{{ '<|assistant|>\n' + m['content'] + eos_token }}{% endif %}"
    "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}\n{% endfor %}"
)

ALPACA = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content + '\n\n' }}"
    "{% elif m.role == 'user' %}{{ '### Instruction:\n' + m.content + '\n\n### Response:\n' }}"
    "{% else %}{{ m.content + eos_token + '\n\n' }}{% endif %}{% endfor %}"
)

VICUNA = (
    "{{ bos_token }}{{ 'A talk between a person and a machine.' }}"
    "{% for m in messages %}{% if m.role == 'user' %}{{ ' USER: ' + m.content.strip() }}"
    "{% elif m.role == 'assistant' %}{{ ' ASSISTANT: ' + m.content.strip() + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ ' ASSISTANT:' }}{% endif %}"
)
