#!/usr/bin/env bash
# Beyond a norm of 65,504 PyTorch's clipping sets float16 gradients to zero.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: `clip_grad_norm_` gives the norm of float16 gradients as float16, which ends at 65,504. Beyond that it is infinite, all
gradients are divided by it, and the step is none: sound gradients are lost, and the model has no NaN that would tell. bfloat16 clips,
by a norm of 8 bits: 126,491 is 126,464. `error_if_nonfinite=True` raises; it is off unless asked for.
"""

import torch


def clipped(kind, **settings):
    weights = [torch.nn.Parameter(torch.zeros(1000, dtype=kind)) for _ in range(4)]
    for weight in weights:
        weight.grad = torch.full_like(weight, 2000.0)
    norm = torch.nn.utils.clip_grad_norm_(weights, 1.0, **settings)
    return norm.item(), weights[0].grad.abs().max().item()


infinity = float("inf")
print(f"torch {torch.__version__}, 4,000 gradients of 2,000 clipped to a norm of 1: norm that is given, gradient after it")
for kind, wanted in ((torch.float32, 126_491), (torch.bfloat16, 126_464), (torch.float16, infinity)):
    for foreach in (True, False):
        norm, after = clipped(kind, foreach=foreach)
        print(f"  {kind}, foreach={foreach}: {norm:,.0f}, {after:.4f}")
        assert norm == wanted or abs(norm - wanted) < 1
        assert after == 0 if wanted == infinity else abs(after - 4000**-0.5) < 1e-4
try:
    clipped(torch.float16, error_if_nonfinite=True)
except RuntimeError as error:
    print(f"  error_if_nonfinite=True: {str(error)[:60]}")
else:
    raise SystemExit("error_if_nonfinite raises nothing")
PYTHON
