#!/usr/bin/env bash
# Where a schema has "minLength": 1, xgrammar lets no quote, line end or backslash be in the text.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check xgrammar==0.2.9 torch==2.13.0 transformers==5.24.0 jsonschema==4.26.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""xgrammar 0.2.9: a text under a JSON schema can have any escapes, until the schema states `minLength`, `maxLength` or `pattern`. From then on
the grammar has no escapes at all: a quote, a line end, a tab or a backslash cannot be written, though each is one character that the
schema allows. A model that would answer with two lines of code is cut to one, and no error is raised.
"""

import json
from importlib.metadata import version

import jsonschema
import xgrammar

information = xgrammar.TokenizerInfo(
    [bytes([code]) for code in range(256)] + [b"</s>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[256]
)
compiler = xgrammar.GrammarCompiler(information)


def writable(schema, text):
    matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(json.dumps(schema)))
    return all(matcher.accept_token(code) for code in [*text.encode(), 256])


print(f"xgrammar {version('xgrammar')}, texts that can be written:")
texts = ("plain", "caf\u00e9", 'say "hi"', "a\nb", "a\tb", "C:\\x")
for condition, escaped in (
    ({}, True),
    ({"minLength": 1}, False),
    ({"maxLength": 100}, False),
    ({"pattern": r"^[\s\S]+$"}, False),
):
    schema = {"type": "string", **condition}
    found = {text: writable(schema, json.dumps(text, ensure_ascii=False)) for text in texts}
    print(f"  {condition}: {[text for text, allowed in found.items() if allowed]}")
    assert all(jsonschema.Draft202012Validator(schema).is_valid(text) for text in texts)
    assert found == {text: escaped or text in ("plain", "caf\u00e9") for text in texts}
PYTHON
