#!/usr/bin/env bash
# Of small weights GGUF's Q8_0 keeps less than Q4_0, and of those about 1e-6 nothing.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check gguf==0.19.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""gguf 0.19.0: Q8_0 keeps the scale of 32 numbers in float16, their largest one divided by 127;
Q4_0 divides it by 8. In weights of about 1e-5 the scale of Q8_0 is so near to zero that float16
rounds it by more than 8 bits are worth: 4 and 5 bits are closer. At 1e-6 all of Q8_0 is zero.
MXFP4, whose scale is a power of two, loses nothing. Nothing is said.
"""

from importlib.metadata import version

import numpy
from gguf import GGMLQuantizationType as Kind
from gguf import quants

weights = numpy.random.default_rng(0).standard_normal((64, 256)).astype(numpy.float32)
KINDS = (Kind.Q8_0, Kind.Q5_0, Kind.Q4_0, Kind.MXFP4)
print(f"gguf {version('gguf')}, error beside the weights' size, by their standard deviation:")
errors = {}
for size in (1e-2, 1e-4, 1e-5, 1e-6):
    scaled = weights * numpy.float32(size)
    found = [quants.dequantize(quants.quantize(scaled, kind), kind) for kind in KINDS]
    errors[size] = [float(numpy.linalg.norm(one - scaled) / numpy.linalg.norm(scaled)) for one in found]
    named = ", ".join(f"{kind.name} {error:.3f}" for kind, error in zip(KINDS, errors[size], strict=True))
    print(f"  {size}: {named}")
assert errors[1e-2][0] < 0.006 and errors[1e-2] == sorted(errors[1e-2])
assert errors[1e-5][0] > errors[1e-5][2] > errors[1e-5][1]
assert errors[1e-6][0] > 0.99 and max(errors[1e-6][1:]) < 0.15
PYTHON
