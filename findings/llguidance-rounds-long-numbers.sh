#!/usr/bin/env bash
# Under a schema that names a long number, llguidance lets a model write another one.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check llguidance==1.9.1 jsonschema==4.26.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""llguidance 1.9.1 reads the numbers of a JSON schema's `const` and `enum` as fractions of 64 bits. A whole number beyond 2**53, as many
systems' IDs are, is rounded: the model cannot write it, and must write a neighbour, which is not valid. `minimum` and `maximum` move
likewise. Texts are kept as they are.
"""

import json
from importlib.metadata import version

import jsonschema
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper


class Bytes:
    eos_token_id, bos_token_id = 256, None
    tokens = [bytes([code]) for code in range(256)] + [b"<end>"]
    special_token_ids = [256]

    def __call__(self, text):
        return list(text.encode() if isinstance(text, str) else text)


tokenizer = LLTokenizer(TokenizerWrapper(Bytes()))


def writable(schema, text):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    assert not matcher.is_error(), matcher.get_error()
    return matcher.try_consume_tokens(list(text.encode())) == len(text) and matcher.is_accepting()


print(f"llguidance {version('llguidance')}:")
for number, instead in ((2**53 - 1, None), (2**53 + 1, 2**53), (123456789012345678, 123456789012345680)):
    schema = {"const": number}
    found = [near for near in range(number - 100, number + 100) if writable(schema, str(near))]
    print(f"  schema {schema}: can be written {found}")
    assert found == [instead or number]
    assert jsonschema.Draft202012Validator(schema).is_valid(found[0]) == (instead is None)
lowest = {"type": "integer", "minimum": 2**53 + 1}
print(f"  schema {lowest}: {2**53} can be written: {writable(lowest, str(2**53))}")
assert writable(lowest, str(2**53)) and not writable({"type": "integer", "minimum": 101}, "100")
assert writable({"const": "123456789012345678"}, '"123456789012345678"')
PYTHON
