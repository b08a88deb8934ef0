#!/usr/bin/env bash
# SGLang drops a tool call with a negative number where a model writes its calls in Python's syntax.
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
"""sglang 0.5.23: the parser "pythonic", for Llama 4 and others that write `[book(day=-1)]`, takes
constants, lists and dicts for literals. A minus is none of these to Python's grammar, and so a call
with a negative number anywhere in its arguments is left out, with a line in the log: the answer has
no call and no text at all, or lacks one of its calls. That of a client who streams is the same.
SGLang's parser "lfm2", for the same syntax, reads such numbers.
"""

import logging
from importlib.metadata import version

from sglang.srt.entrypoints.openai.protocol import Function, Tool
from sglang.srt.function_call.lfm2_detector import Lfm2Detector
from sglang.srt.function_call.pythonic_detector import PythonicDetector

logging.disable(logging.CRITICAL)
numbers = {"type": "array", "items": {"type": "number"}}
schema = {"type": "object", "properties": {"day": {"type": "integer"}, "at": numbers}}
tools = [Tool(type="function", function=Function(name="book", parameters=schema))]


def streamed(answer):
    """The arguments and the text of an answer that comes in pieces."""
    parser = PythonicDetector()
    parts = [parser.parse_streaming_increment(answer[at : at + 3], tools) for at in range(0, len(answer), 3)]
    return [call.parameters for part in parts for call in part.calls], "".join(part.normal_text for part in parts)


print(f"sglang {version('sglang')}, calls and text of an answer, whole and streamed, and the calls by lfm2:")
for answer, kept in (
    ("[book(day=1)]", ['{"day": 1}']),
    ("[book(day=-1)]", []),
    ("[book(at=[52.5, -13.4])]", []),
    ("[book(day=2), book(day=-1)]", ['{"day": 2}']),
):
    whole = PythonicDetector().detect_and_parse(answer, tools)
    found = [call.parameters for call in whole.calls], whole.normal_text
    other = Lfm2Detector().detect_and_parse(f"<|tool_call_start|>{answer}<|tool_call_end|>", tools)
    print(f"  {answer}: {found}, {streamed(answer)}, {[call.parameters for call in other.calls]}")
    assert found == streamed(answer) == (kept, "") and len(other.calls) == answer.count("book")
PYTHON
