#!/usr/bin/env bash
# mistral-common hands the model the number 1.1 where a tool answered with the text 1.10.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mistral-common==1.13.1 sentencepiece==0.2.3
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""mistral-common 1.13.1 reads a tool's answer, which is text, as JSON where that is possible, and writes it anew, for tokenizers of versions 2 and 3 (Mistral
7B, Nemo and Ministral among them). A version 1.10 comes to the model as 1.1, an amount 1e3 as 1000.0, a long fraction rounded,
an empty answer as {}. Tokenizers of version 7 get the text as it is. Text in quotes stays text.
"""

import pathlib
from importlib.metadata import version

import mistral_common
from mistral_common.protocol.instruct.messages import AssistantMessage, ToolMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.tool_calls import FunctionCall, ToolCall
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

folder = pathlib.Path(mistral_common.__file__).parent / "data"


def shown(tokenizer, answer):
    call = ToolCall(id="abcdefghi", function=FunctionCall(name="f", arguments="{}"))
    messages = [
        UserMessage(content="a"),
        AssistantMessage(content=None, tool_calls=[call]),
        ToolMessage(name="f", content=answer, tool_call_id="abcdefghi"),
    ]
    text = tokenizer.encode_chat_completion(ChatCompletionRequest(messages=messages)).text
    results = text.split("[TOOL_RESULTS]")[1].split("[/TOOL_RESULTS]")[0].replace("\u2581", " ")
    if "[TOOL_CONTENT]" in results:
        return results.split("[TOOL_CONTENT]")[1].removeprefix(" ")
    return results.split('"content": ')[1].split(', "call_id"')[0]


print(f"mistral-common {version('mistral-common')}, what tools answered and what the model is shown:")
expected = {"1.10": "1.1", "1e3": "1000.0", "12345678901234567.25": "1.2345678901234568e+16", "": "{}", "007": '"007"'}
for name in ("tekken_240911.json", "mistral_instruct_tokenizer_241114.model.v7"):
    tokenizer = MistralTokenizer.from_file(str(folder / name))
    for answer, rewritten in expected.items():
        found = shown(tokenizer, answer)
        print(f"  {name}: {answer!r}: {found}")
        assert found == (answer if name.endswith("v7") else rewritten)
PYTHON
