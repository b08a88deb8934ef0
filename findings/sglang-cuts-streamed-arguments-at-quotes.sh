#!/usr/bin/env bash
# SGLang cuts a streamed tool call of Llama short where a text in it has single quotes behind a colon.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
# What the parser imports; the server itself asks for a GPU and much more.
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.14.1 transformers==5.19.0 numpy==2.4.6 \
  triton==3.8.0 pillow==13.0.0 psutil==7.2.2 pybase64==1.5.1 orjson==3.13.0 requests==2.34.2 starlette==1.10.0 \
  msgspec==0.23.0 pyzmq==27.3.0 ipython==9.18.1 aiohttp==3.14.5 openai==3.57.0 partial-json-parser==0.2.1.1.post7
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps sglang==0.5.23
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" -W ignore - <<'PYTHON'
"""sglang 0.5.23: the parser "llama3" writes double quotes for single ones behind and before a colon in
what is streamed, also within the texts of calls that are JSON as they should be. The text of an
argument ends there, what follows is gone, and so are the closing quote and bracket: the client has
the start of a call and no error. A query, a message or code with a quoted word in it is enough. The
same answer taken whole has its arguments unchanged, and so has one with no quotes.
"""

import json
from importlib.metadata import version

from sglang.srt.entrypoints.openai.protocol import Function, Tool
from sglang.srt.function_call.llama32_detector import Llama32Detector

tools = [Tool(type="function", function=Function(name="run", parameters={"type": "object"}))]


def arguments(answer):
    """The arguments of the call in a whole answer, and in the same one in pieces."""
    whole, parser = Llama32Detector().detect_and_parse(answer, tools), Llama32Detector()
    parts = [parser.parse_streaming_increment(answer[at : at + 4], tools) for at in range(0, len(answer), 4)]
    return whole.calls[0].parameters, "".join(call.parameters or "" for part in parts for call in part.calls)


print(f"sglang {version('sglang')}, arguments of a call whole and streamed:")
for text, kept in (
    ("say yes to her", '{"text": "say yes to her"}'),
    ("say 'yes' to her", '{"text": "say \'yes\' to her"}'),
    ("say: 'yes' to her", '{"text": "say:'),
    ("open({'path': name})", '{"text": "open({\'p'),
):
    call = json.dumps({"name": "run", "parameters": {"text": text}})
    whole, streamed = arguments(call)
    print(f"  {whole} streamed: {streamed}")
    assert json.loads(whole) == {"text": text} and streamed == kept
PYTHON
