#!/usr/bin/env bash
# On CPU the gradient of LayerNorm's bias stops growing after 256 rows in bfloat16, also where the bias is float32.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0, on CPU: LayerNorm adds the gradients of its weight and bias over rows in the type of the rows, in each thread on its own. Of 4,096
rows in bfloat16 that push the bias the same way it gets 256, in float16 2,048; with weights in float32, and so in autocast, too,
where the gradient is then a float32 of that value. A linear layer's bias, GroupNorm's and RMSNorm's weight get all.
"""

import torch

torch.set_num_threads(1)
rows, width = 4_096, 8
print(f"torch {torch.__version__}, of {rows:,} gradients of one:")
for kind, stop in ((torch.float32, rows), (torch.float16, 2_048), (torch.bfloat16, 256)):
    given = torch.randn(rows, width, generator=torch.Generator().manual_seed(0)).to(kind)
    layers = {
        "LayerNorm": torch.nn.LayerNorm(width).to(kind),
        "LayerNorm in float32": torch.nn.LayerNorm(width),
        "Linear": torch.nn.Linear(width, width).to(kind),
        "GroupNorm": torch.nn.GroupNorm(1, width).to(kind),
    }
    for layer in layers.values():
        layer(given).sum().backward()
    found = {name: layer.bias.grad[0].item() for name, layer in layers.items()}
    root = torch.nn.RMSNorm(width).to(kind)
    root(torch.ones(rows, width, dtype=kind)).sum().backward()
    found["RMSNorm"] = root.weight.grad[0].item()
    if kind != torch.float32:
        within = torch.nn.LayerNorm(width)
        with torch.autocast("cpu", dtype=kind):
            within(given).sum().backward()
        found["LayerNorm in autocast"] = within.bias.grad[0].item()
    print(f"  {kind}: " + ", ".join(f"{name} {value:,.0f}" for name, value in found.items()))
    assert all(value == stop if "Layer" in name else abs(value - rows) < 0.01 * rows for name, value in found.items())
PYTHON
