#!/usr/bin/env bash
# On CPU, PaddlePaddle's relu makes 0 of NaN, so that a broken layer gives sound outputs.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check paddlepaddle==3.3.1 numpy==2.4.6 setuptools==80.9.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" -W ignore - <<'PYTHON'
"""paddle 3.3.1: relu on CPU gives 0 for NaN, in float32 and float64, and its gradient is 0 there: what is NaN in a model before a relu is gone behind it,
a check of the loss finds nothing, and the layers before it are never trained. relu6, leaky_relu, silu and gelu give NaN, as all do in
PyTorch. argmax passes over NaN too unless it comes first, where max is NaN.
"""

import paddle
import paddle.nn.functional as functional

print(f"paddle {paddle.__version__}, of NaN and 2:")
for dtype in ("float32", "float64"):
    given = paddle.to_tensor([float("nan"), 2.0], dtype=dtype, stop_gradient=False)
    for name in ("relu", "relu6", "leaky_relu", "silu", "gelu"):
        found = getattr(functional, name)(given)
        print(f"  {name} in {dtype}: {found.tolist()}")
        assert (found[0].item() == 0.0) if name == "relu" else (found[0].item() != found[0].item())
    functional.relu(given).sum().backward()
    print(f"  gradient of relu's sum in {dtype}: {given.grad.tolist()}")
    assert given.grad.tolist() == [0.0, 1.0]
later = paddle.to_tensor([1.0, float("nan"), 3.0])
print(f"  of 1, NaN and 3: max {later.max().item()}, argmax {later.argmax().item()}")
assert later.max().item() != later.max().item() and later.argmax().item() == 2
PYTHON
