#!/usr/bin/env bash
# xgrammar keeps one of two conditions that a JSON schema states side by side.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check xgrammar==0.2.9 torch==2.13.0 transformers==5.23.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""xgrammar 0.2.9, by which servers hold answers to a JSON schema: where a schema has `$ref`, `anyOf` or `enum`, what stands beside it is passed
over without a word, and a name that is `required` and not among `properties` need not be there. The answers are then
invalid by the schema they were held to. Put the condition into each branch, or into the definition, and it is kept.
"""

import json
from importlib.metadata import version

import xgrammar

vocabulary = [chr(code) for code in range(1, 127)] + ["</s>"]
information = xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[len(vocabulary) - 1])
compiler = xgrammar.GrammarCompiler(information)
whole = {"type": "integer"}


def accepts(schema, text):
    matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(json.dumps(schema), strict_mode=False))
    return matcher.accept_string(text) and matcher.accept_token(len(vocabulary) - 1)


dropped = {
    "$ref and maximum": ({"$defs": {"count": whole}, "$ref": "#/$defs/count", "maximum": 3}, "9"),
    "anyOf and maximum": ({"maximum": 3, "anyOf": [whole, {"type": "null"}]}, "9"),
    "enum and pattern": ({"enum": ["a", "b"], "pattern": "^a$"}, '"b"'),
    "required, no property": ({"type": "object", "properties": {"a": whole}, "required": ["b"]}, '{"a": 1}'),
}
kept = {
    "maximum in the definition": ({"$defs": {"count": {**whole, "maximum": 3}}, "$ref": "#/$defs/count"}, "9"),
    "maximum in a branch": ({"anyOf": [{**whole, "maximum": 3}, {"type": "null"}]}, "9"),
    "required, a property": ({"type": "object", "properties": {"a": whole, "b": whole}, "required": ["b"]}, '{"a": 1}'),
}
print(f"xgrammar {version('xgrammar')}, answers that are invalid by their schema:")
for label, (schema, text) in {**dropped, **kept}.items():
    found = accepts(schema, text)
    print(f"  {label}: {text} is {'accepted' if found else 'refused'}")
    assert found == (label in dropped)
PYTHON
