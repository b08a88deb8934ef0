#!/usr/bin/env bash
# SGLang finds no tool call in what Mistral Nemo writes, for want of a space.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
# What the parser imports; the server itself asks for a GPU and much more.
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.14.1 transformers==5.19.0 numpy==2.3.5 \
  triton==3.8.0 pillow==13.0.0 psutil==7.2.2 pybase64==1.5.1 orjson==3.13.0 requests==2.34.2 starlette==1.10.0 \
  msgspec==0.23.0 pyzmq==27.3.0 ipython==9.18.1 aiohttp==3.14.5 openai==3.57.0 partial-json-parser==0.2.1.1.post7 \
  mistral-common==1.13.1 sentencepiece==0.2.3
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps sglang==0.5.23
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" -W ignore - <<'PYTHON'
"""sglang 0.5.23: the parser "mistral" looks for `[TOOL_CALLS] [`, with a space, as models with
Mistral's SentencePiece tokenizers write their calls. Those with Tekken, as Nemo and Pixtral, write
`[TOOL_CALLS][`, here by mistral-common 1.13.1. Of their answers no call is left and no text, whole
or streamed, and nothing is said: a client sees an empty answer. With a space put in, the same
answer has its call.
"""

import json
import pathlib
from importlib.metadata import version

import mistral_common
from mistral_common.protocol.instruct.messages import AssistantMessage, ToolMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.tool_calls import FunctionCall, ToolCall
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from sglang.srt.entrypoints.openai.protocol import Function, Tool
from sglang.srt.function_call.mistral_detector import MistralDetector

tools = [Tool(type="function", function=Function(name="look", parameters={"type": "object"}))]


def written(name):
    """What a model with this tokenizer writes to call a tool."""
    call = ToolCall(id="abcdefghi", function=FunctionCall(name="look", arguments='{"at": 3}'))
    answer = [AssistantMessage(content=None, tool_calls=[call]), ToolMessage(content="b", tool_call_id="abcdefghi")]
    tokenizer = MistralTokenizer.from_file(str(pathlib.Path(mistral_common.__file__).parent / "data" / name))
    text = tokenizer.encode_chat_completion(ChatCompletionRequest(messages=[UserMessage(content="a"), *answer])).text
    return text.split("[/INST]")[1].split("</s>")[0].replace("\u2581", " ")


def calls(answer):
    """The calls in a whole answer and in the same one in pieces, and its text."""
    whole, parser = MistralDetector().detect_and_parse(answer, tools), MistralDetector()
    parts = [parser.parse_streaming_increment(answer[at : at + 3], tools) for at in range(0, len(answer), 3)]
    streamed = "".join(call.parameters or "" for part in parts for call in part.calls)
    text = whole.normal_text + "".join(part.normal_text for part in parts)
    return [json.loads(call.parameters) for call in whole.calls], streamed, text


sentencepiece, tekken = (written(name) for name in ("mistral_instruct_tokenizer_240323.model.v3", "tekken_240718.json"))
assert tekken == sentencepiece.replace("[TOOL_CALLS] [", "[TOOL_CALLS][") != sentencepiece
print(f"sglang {version('sglang')}, calls whole and streamed, and text:")
for answer, kept in ((sentencepiece, ([{"at": 3}], '{"at": 3}', "")), (tekken, ([], "", ""))):
    print(f"  {answer}: {calls(answer)}")
    assert calls(answer) == kept
assert calls(tekken.replace("S][", "S] [")) == calls(sentencepiece)
PYTHON
