#!/usr/bin/env bash
# SGLang gives a tool of Qwen 3 Coder nothing where the model wrote the text Null, as the surname.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
# What the parsers import; the server itself asks for a GPU and much more.
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.14.1 transformers==5.19.0 numpy==2.4.6 \
  triton==3.8.0 pillow==13.0.0 psutil==7.2.2 pybase64==1.5.1 orjson==3.13.0 requests==2.34.2 starlette==1.10.0 \
  msgspec==0.23.0 pyzmq==27.3.0 ipython==9.18.1 aiohttp==3.14.5 openai==3.57.0 partial-json-parser==0.2.1.1.post7
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps sglang==0.5.23
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" -W ignore - <<'PYTHON'
"""sglang 0.5.23: the parser "qwen3_coder" makes a JSON null of every argument that is the word null,
in small letters or large, before it looks at the type, whole or streamed. Where the schema says text,
the surname Null and the text NULL, as a field of a table or a line of a file, come to the tool as
nothing, which a schema refuses or a tool leaves out. "qwen25", whose models write arguments as JSON,
keeps them.
"""

import json
from importlib.metadata import version

from sglang.srt.entrypoints.openai.protocol import Function, Tool
from sglang.srt.function_call.qwen3_coder_detector import Qwen3CoderDetector
from sglang.srt.function_call.qwen25_detector import Qwen25Detector

schema = {"type": "object", "properties": {"surname": {"type": "string"}}, "required": ["surname"]}
tools = [Tool(type="function", function=Function(name="find", parameters=schema))]


def found(kind, answer):
    """The arguments of the call in a whole answer, and in the same one in pieces."""
    whole, parser = kind().detect_and_parse(answer, tools), kind()
    parts = [parser.parse_streaming_increment(answer[at : at + 5], tools) for at in range(0, len(answer), 5)]
    streamed = "".join(call.parameters or "" for part in parts for call in part.calls)
    return [json.loads(text)["surname"] for text in (whole.calls[0].parameters, streamed)]


print(f"sglang {version('sglang')}, a required text by qwen3_coder and qwen25, whole and streamed:")
for text, wanted in (("Nullen", "Nullen"), ("None", "None"), ("Null", None), ("NULL", None), ("null", None)):
    parameter = f"<parameter=surname>\n{text}\n</parameter>"
    coder = f"<tool_call>\n<function=find>\n{parameter}\n</function>\n</tool_call>"
    older = f"<tool_call>\n{json.dumps({'name': 'find', 'arguments': {'surname': text}})}\n</tool_call>"
    values = found(Qwen3CoderDetector, coder), found(Qwen25Detector, older)
    print(f"  {text}: {values}")
    assert values == ([wanted] * 2, [text] * 2)
PYTHON
