#!/usr/bin/env bash
# MXFP4 of GGUF turns a block with a NaN into zeros, so that a broken model looks sound.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check gguf==0.19.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""gguf 0.19.0: quantised to MXFP4, a block of 32 weights with a NaN or an infinite one among them
is 32 zeros. The weights of a training that broke come out as a model that answers, without the
blocks that would have told. Q4_0 and Q8_0 give a whole block of NaN, and BF16 the one number, as
it is. Nothing but a warning of numpy about a cast, for infinity, is seen.
"""

from importlib.metadata import version

import numpy
from gguf import GGMLQuantizationType as Kind
from gguf import quants

weights = numpy.random.default_rng(0).standard_normal((2, 64)).astype(numpy.float32)
print(f"gguf {version('gguf')}, of 128 weights with one that is not finite, NaN or infinite and zero ones:")
for broken in (numpy.nan, numpy.inf):
    for kind, lost, zeros in ((Kind.MXFP4, 0, 32), (Kind.Q4_0, 32, 0), (Kind.Q8_0, 32, 0), (Kind.BF16, 1, 0)):
        given = weights.copy()
        given[0, 3] = broken
        with numpy.errstate(all="ignore"):
            found = quants.dequantize(quants.quantize(given, kind), kind)
        first = found.reshape(-1)[:32]
        counts = int((~numpy.isfinite(found)).sum()), int((first == 0).sum())
        print(f"  {kind.name} with {broken}: {counts[0]} not finite, {counts[1]} zero in the first block")
        assert counts[0] == lost and (counts[1] == 32) == (zeros == 32)
PYTHON
