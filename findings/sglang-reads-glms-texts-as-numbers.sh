#!/usr/bin/env bash
# SGLang gives a tool of GLM 4.5 the text 3.1 where the model wrote 3.10, unless the answer is streamed.
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
"""sglang 0.5.23: GLM writes arguments that are texts bare and all others as JSON. The parser
"glm45" reads each of them as JSON first and, where the schema says text, makes a text of what it
has read: 3.10 becomes 3.1, true "True", and a null for an optional text the word "None", which the
tool takes for a value. A text in quotes loses them. The same answer streamed keeps 3.10, true and
the quotes, and has "null". "glm47", for GLM 4.7, keeps them but the quotes.
"""

import json
from importlib.metadata import version

from sglang.srt.entrypoints.openai.protocol import Function, Tool
from sglang.srt.function_call.glm4_moe_detector import Glm4MoeDetector
from sglang.srt.function_call.glm47_moe_detector import Glm47MoeDetector

# As pydantic writes `str | None`.
schema = {"type": "object", "properties": {"version": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}
tools = [Tool(type="function", function=Function(name="install", parameters=schema))]


def answer(text, end):
    """A call as the chat template of GLM 4.5 writes it, or with no line ends that of GLM 4.7."""
    value = f"<arg_value>{text}</arg_value>"
    return end.join(["<tool_call>install", "<arg_key>version</arg_key>", value, "</tool_call>"])


def streamed(text):
    parser, said = Glm4MoeDetector(), answer(text, "\n")
    parts = [parser.parse_streaming_increment(said[at : at + 7], tools) for at in range(0, len(said), 7)]
    return json.loads("".join(call.parameters or "" for part in parts for call in part.calls))["version"]


print(f"sglang {version('sglang')}, an optional text by glm45, streamed, and by glm47:")
expected = {"3.12": ["3.12"] * 3, "3.10": ["3.1", "3.10", "3.10"], "true": ["True", "true", "true"]}
expected |= {"null": ["None", "null", None], '"this"': ["this", '"this"', "this"]}
for text, wanted in expected.items():
    whole = Glm4MoeDetector().detect_and_parse(answer(text, "\n"), tools)
    newer = Glm47MoeDetector().detect_and_parse(answer(text, ""), tools)
    found = [json.loads(parsed.calls[0].parameters)["version"] for parsed in (whole, newer)]
    found.insert(1, streamed(text))
    print(f"  {text}: {found}")
    assert found == wanted
PYTHON
