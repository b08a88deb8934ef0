#!/usr/bin/env bash
# On CPU the gradient of a bfloat16 embedding stops growing once a token is in a batch some 256 times.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0, on CPU: the gradient of an embedding adds up row by row in the weight's own type. In bfloat16 a sum of like numbers stays at
256 of them, in float16 at 2,048: a token that a batch has 5,000 times, as a line end or a padding token, gets a twentieth of its
gradient. `index_add_` and `index_put_` are alike; the gradient of a linear layer's weight, `scatter_add_`, and float32 are right.
"""

import torch

torch.set_num_threads(1)
times = 5_000
places = torch.zeros(times, dtype=torch.long)
print(f"torch {torch.__version__}, of {times:,} ones:")
found = {}
for kind in (torch.float32, torch.float16, torch.bfloat16):
    ones = torch.ones(times, dtype=kind)
    weight = torch.nn.Parameter(torch.zeros(4, 2, dtype=kind))
    torch.nn.functional.embedding(places, weight).sum().backward()
    linear = torch.nn.Linear(2, 2).to(kind)
    linear(torch.ones(times, 2, dtype=kind)).sum().backward()
    found[kind] = {
        "embedding": weight.grad[0, 0],
        "index_add_": torch.zeros(1, dtype=kind).index_add_(0, places, ones)[0],
        "index_put_": torch.zeros(1, dtype=kind).index_put_((places,), ones, accumulate=True)[0],
        "scatter_add_": torch.zeros(1, dtype=kind).scatter_add_(0, places, ones)[0],
        "linear": linear.weight.grad[0, 0],
    }
    print(f"  {kind}: " + ", ".join(f"{name} {value.item():,.0f}" for name, value in found[kind].items()))
    for name, value in found[kind].items():
        stops = {torch.float16: 2_048, torch.bfloat16: 256}.get(kind) if name in ("embedding", "index_add_", "index_put_") else None
        assert value == stops if stops else abs(value.item() - times) < 0.01 * times
PYTHON
