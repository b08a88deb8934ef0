#!/usr/bin/env bash
# pytorch_optimizer's PolyScheduler raises the learning rate above its maximum where PyTorch's and transformers' polynomials let it fall.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 pytorch_optimizer==4.1.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""pytorch_optimizer 4.1.0: `PolyScheduler` adds to `min_lr` the difference to `max_lr` times a power of the count of steps since the warm-up, not of a
share of them. So the rate stands at `max_lr` one step after the warm-up and is ten times that after a hundred, with no end; `t_max`
changes nothing. `LinearScheduler` and `CosineScheduler` of the same settings fall to `min_lr`, as does PyTorch's PolynomialLR to 0.
"""

from importlib.metadata import version

import torch
from pytorch_optimizer import CosineScheduler, LinearScheduler, PolyScheduler

steps, warm_up = 1_010, 10


def rates(maker):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler, found = maker(optimizer), []
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        found.append(float(optimizer.param_groups[0]["lr"]))
    return found


settings = {"max_lr": 1.0, "min_lr": 0.0, "init_lr": 0.0, "warmup_steps": warm_up}
print(f"pytorch_optimizer {version('pytorch_optimizer')}, rates with a maximum of 1, 1, 100 and 900 steps behind the warm-up:")
for name, maker in {
    "PolyScheduler": lambda optimizer: PolyScheduler(optimizer, t_max=steps, **settings),
    "PolyScheduler, t_max 10 times that": lambda optimizer: PolyScheduler(optimizer, t_max=10 * steps, **settings),
    "PolyScheduler, poly_order 1": lambda optimizer: PolyScheduler(optimizer, t_max=steps, poly_order=1.0, **settings),
    "LinearScheduler": lambda optimizer: LinearScheduler(optimizer, t_max=steps, **settings),
    "CosineScheduler": lambda optimizer: CosineScheduler(optimizer, t_max=steps, **settings),
    "PyTorch's PolynomialLR": lambda optimizer: torch.optim.lr_scheduler.PolynomialLR(optimizer, steps, 0.5),
}.items():
    found = rates(maker)
    seen = [found[warm_up + after] for after in (1, 100, 900)]
    print(f"  {name}: " + ", ".join(f"{rate:.3f}" for rate in seen))
    if name.startswith("Poly"):
        order = 1.0 if name.endswith("order 1") else 0.5
        assert all(abs(rate / after**order - 1) < 1e-6 for rate, after in zip(seen, (1, 100, 900), strict=True))
    else:
        assert 1 >= seen[0] > seen[1] > seen[2] and max(found) <= 1
PYTHON
