#!/usr/bin/env bash
# transformers takes the block of an FP8 weight from the number of its scales, not from the stated block size.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""transformers 5.23.0, dequantising weights of checkpoints that state blocks of 128 x 128, whose last block is smaller
where rows are no multiple of 128:

- 192 rows have two scales, of rows 0 to 127 and 128 to 191; they are applied to rows 0 to 95 and 96 to 191, and
  nothing is said: rows 96 to 127 come out with the other block's scale;
- 576 rows have five scales, which do not divide them: a ValueError.
"""

import torch
import transformers
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

BLOCK = 128


def dequantised(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ones under scales 1, 2, 3 ...: by transformers, and by the stated block."""
    scales = torch.arange(1.0, -(-rows // BLOCK) + 1).unsqueeze(1)
    weight = torch.ones(rows, BLOCK).to(torch.float8_e4m3fn)
    return Fp8Dequantize(None)._dequantize_one(weight, scales, torch.float32), scales.repeat_interleave(BLOCK, 0)[:rows]


theirs, stated = dequantised(192)
wrong = (theirs[:, 0] != stated[:, 0]).nonzero().flatten().tolist()
print(f"transformers {transformers.__version__}, 192 rows: rows {wrong[0]} to {wrong[-1]} have another block's scale")
assert wrong == list(range(96, 128))
whole, expected = dequantised(256)
assert torch.equal(whole, expected.expand_as(whole))
try:
    dequantised(576)
except ValueError as error:
    print(f"576 rows: {error}")
else:
    raise AssertionError("576 rows are dequantised now")
PYTHON
