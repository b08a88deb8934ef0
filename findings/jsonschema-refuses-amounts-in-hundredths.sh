#!/usr/bin/env bash
# jsonschema refuses 19.99 where a schema asks for a multiple of 0.01.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jsonschema==4.26.0 fastjsonschema==2.22.3
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""jsonschema 4.26.0: whether a fraction is a multiple of another is asked of their quotient as
floats, which for 19.99 and 0.01 is 1998.9999999999998. So an answer that keeps to a schema of
amounts in hundredths is refused: of those from 0.01 to 100.00 it is one in seven, of tenths one in
three. fastjsonschema takes them all. Halves and quarters are exact.
"""

from importlib.metadata import version

import fastjsonschema
import jsonschema


def refused(step, count):
    """The multiples of a step that each library refuses."""
    slow, fast = jsonschema.Draft202012Validator({"multipleOf": step}), fastjsonschema.compile({"multipleOf": step})
    numbers, others = [float(f"{place * step:.4f}") for place in range(1, count + 1)], []
    for number in numbers:
        try:
            fast(number)
        except fastjsonschema.JsonSchemaValueException:
            others.append(number)
    return [number for number in numbers if not slow.is_valid(number)], others


print(f"jsonschema {version('jsonschema')}, fastjsonschema {version('fastjsonschema')}, multiples refused:")
for step, count, wanted in ((0.01, 10000, 1363), (0.1, 1000, 348), (0.25, 1000, 0)):
    slow, fast = refused(step, count)
    print(f"  of {count} multiples of {step}: {len(slow)}, {len(fast)}; the first: {slow[:6]}")
    assert len(slow) == wanted and not fast
assert 19.99 in refused(0.01, 2000)[0] and 20.0 not in refused(0.01, 2000)[0]
PYTHON
