#!/usr/bin/env bash
# pint compares an amount of bytes with a number as if the number counted bits.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pint==0.25.3
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""pint 0.25.3: a byte is 8 bits and a bit is a number without dimension. So memory in bytes can be compared with, added to and turned
into plain numbers, and is then counted in bits: a model of 16 GB does not fit into 80e9, where both are meant in bytes, and `int()` of it
is 128e9. An amount with another dimension, as a length, refuses all of that. `.m_as("byte")` gives bytes.
"""

import pint

units = pint.UnitRegistry()
model, device = units("16 GB"), 80e9
print(f"pint {pint.__version__}, a model of {model} and a device of {device:g} bytes:")
print(f"  fits: {model <= device}, as a number {int(model):,}, less one {model - 1}, in bytes {model.m_as('byte'):,.0f}")
assert not model <= device and int(model) == 128_000_000_000 and model.m_as("byte") == 16e9
assert (device - model).magnitude == 80e9 - 128e9 and units("1 byte") == 8
refused = []
for asked in (lambda: units("16 km") <= device, lambda: int(units("16 km")), lambda: units("16 km") - 1):
    try:
        asked()
    except (ValueError, pint.DimensionalityError) as error:
        refused.append(type(error).__name__)
print(f"  a length refuses: {refused}")
assert len(refused) == 3
PYTHON
