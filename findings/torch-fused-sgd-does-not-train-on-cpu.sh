#!/usr/bin/env bash
# On CPU, PyTorch's fused SGD leaves weights in bfloat16 and float16 as they are.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0, on CPU: `SGD(fused=True)` computes the step of weights in half precision and does not put it into them; only what is left over at
the end of a tensor, where its length is no multiple of the processor's vectors, moves. So a model trains in a few of its weights or
in none, with momentum, Nesterov's and weight decay too. float32 weights, AdamW and Adagrad with `fused=True`, and SGD without it train.
"""

import torch


def moved(maker, kind, **settings):
    weight = torch.nn.Parameter(torch.ones(1024, dtype=kind))
    optimizer = maker([weight], lr=0.1, **settings)
    for _ in range(3):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    return (weight != 1).sum().item()


SGD, AdamW, Adagrad = torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad
print(f"torch {torch.__version__}, weights of 1,024 that three steps move: as it is, fused")
for maker, settings in (
    (SGD, {}),
    (SGD, {"momentum": 0.9}),
    (SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (AdamW, {}),
    (Adagrad, {}),
):
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        plain, fused = moved(maker, kind, **settings), moved(maker, kind, fused=True, **settings)
        print(f"  {maker.__name__}, {settings}, {kind}: {plain:,}, {fused:,}")
        assert plain == 1024 and fused == (0 if maker is SGD and kind != torch.float32 else 1024)
PYTHON
