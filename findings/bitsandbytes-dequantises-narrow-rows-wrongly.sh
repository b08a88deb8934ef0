#!/usr/bin/env bash
# On CPU, bitsandbytes gives other numbers for a 4-bit matrix whose rows are no multiple of the block.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 bitsandbytes==0.50.2
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""bitsandbytes 0.50.2 on CPU: `dequantize_4bit` of what `quantize_4bit` made, in blocks of 64. Rows of 64 and 128
columns come back as the codes and scales say, to the last digit; of rows of 16, 48 or 96 columns, where a block runs
over the end of a row, most numbers are other ones, and nothing is said.
"""

import bitsandbytes
import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit

BLOCK, ROWS = 64, 64
torch.manual_seed(0)


def share_wrong(columns: int) -> float:
    packed, state = quantize_4bit(torch.randn(ROWS, columns), quant_type="nf4", blocksize=BLOCK)
    codes = packed.flatten()
    codes = torch.stack([codes >> 4, codes & 15], dim=1).flatten().long()
    expected = (state.code[codes].view(-1, BLOCK) * state.absmax[:, None]).view(ROWS, columns)
    return (dequantize_4bit(packed, state) != expected).double().mean().item()


wrong = {columns: share_wrong(columns) for columns in (16, 48, 64, 96, 128)}
print(f"bitsandbytes {bitsandbytes.__version__}, share of wrong numbers by columns: {wrong}")
assert wrong[64] == wrong[128] == 0
assert all(wrong[columns] > 0.1 for columns in (16, 48, 96))
PYTHON
