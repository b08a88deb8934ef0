#!/usr/bin/env bash
# MLX opens float8 weights of a safetensors file as the whole numbers 0 to 255.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 safetensors==0.8.0 'mlx[cpu]==0.32.4'
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""mlx 0.32.4: `mx.load` has no float8 and gives weights of type F8_E4M3 as uint8, their bits: 1.0 is 56 and -0.5 is 176. So
products with them are numbers of another size and sign, and saved again the file says U8, which no reader takes for float8.
Nothing is said, where float64, which it has none of either, is refused. `mx.from_fp8` reads them right.
"""

from importlib.metadata import version

import mlx.core as mx
import torch
from safetensors.torch import load_file, save_file

weights = torch.tensor([1.0, 2.0, -0.5, 448.0])
save_file({"weight": weights.to(torch.float8_e4m3fn)}, "model.safetensors")
opened = mx.load("model.safetensors")["weight"]
right = mx.from_fp8(opened, dtype=mx.float32)
mx.save_safetensors("again.safetensors", {"weight": opened})
again = load_file("again.safetensors")["weight"]
print(f"mlx {version('mlx')}, float8 weights {weights.tolist()}:")
print(f"  mx.load: {opened.tolist()} ({opened.dtype}); times 1.0: {(opened * 1.0).tolist()}; mx.from_fp8: {right.tolist()}")
print(f"  saved again, and read by PyTorch: {again.tolist()} ({again.dtype})")
assert opened.dtype == mx.uint8 and opened.tolist() == again.tolist() == [56, 64, 176, 126]
assert again.dtype == torch.uint8 and right.tolist() == weights.tolist()
save_file({"weight": weights.double()}, "double.safetensors")
try:
    mx.load("double.safetensors")
except RuntimeError as error:
    print(f"  float64: {error}")
else:
    raise SystemExit("float64 is opened too")
PYTHON
