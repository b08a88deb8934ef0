#!/usr/bin/env bash
# A pattern of a JSON schema holds for some part of a text, and in xgrammar for all of it.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check xgrammar==0.2.9 torch==2.13.0 transformers==5.23.0 jsonschema==4.26.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""xgrammar 0.2.9: JSON Schema's `pattern` is searched for, so that "[0-9]" asks for a text with a digit in it. xgrammar takes it as if it began with "^" and
ended with "$": the model can answer with one digit and nothing else, though no validator would mind more. Write ".*[0-9].*".
"""

import json
from importlib.metadata import version

import jsonschema
import xgrammar

vocabulary = [chr(code) for code in range(1, 127)] + ["</s>"]
compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[len(vocabulary) - 1]))


def accepts(pattern, text):
    schema = {"type": "string", "pattern": pattern}
    matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(json.dumps(schema)))
    held = matcher.accept_string(json.dumps(text)) and matcher.accept_token(len(vocabulary) - 1)
    return held, jsonschema.Draft202012Validator(schema).is_valid(text)


print(f"xgrammar {version('xgrammar')}:")
for pattern, text, wanted in [("[0-9]", "room 7", False), ("^room", "room 7", False), (".*[0-9].*", "room 7", True), ("[0-9]", "7", True)]:
    held, valid = accepts(pattern, text)
    print(f"  pattern {pattern}, text {text!r}: {'accepted' if held else 'refused'}; valid by jsonschema: {valid}")
    assert held == wanted and valid
PYTHON
