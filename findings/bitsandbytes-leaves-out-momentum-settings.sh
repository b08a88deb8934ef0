#!/usr/bin/env bash
# bitsandbytes takes RMSprop's momentum and SGD's nesterov, and trains without them.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 bitsandbytes==0.50.2
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""bitsandbytes 0.50.2: RMSprop takes `momentum`, whose documentation says that it takes bigger steps, and SGD takes `nesterov`; both
train exactly as without. Other settings that it lacks raise errors: `centered` of RMSprop, `amsgrad` of Adam8bit. In PyTorch, a momentum
of 0.9 moves the weights about ten times as far.
"""

from importlib.metadata import version

import bitsandbytes
import torch


def moved(kind, **settings):
    """How far a tensor moves in 100 steps along noisy gradients."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.nn.Parameter(torch.zeros(64, 128))
    optimizer = kind([weights], lr=1e-3, **settings)
    for _ in range(100):
        weights.grad = torch.randn(64, 128, generator=generator) + 1
        optimizer.step()
    return weights.detach()


print(f"bitsandbytes {version('bitsandbytes')}, mean of the weights after 100 steps, without and with the setting:")
for name, base, more in (("RMSprop", {}, {"momentum": 0.9}), ("SGD", {"momentum": 0.9}, {"nesterov": True})):
    for package in (torch, bitsandbytes):
        kind = getattr(package.optim, name)
        without, with_it = moved(kind, **base), moved(kind, **base, **more)
        print(f"  {package.__name__}.optim.{name}, {more}: {without.mean():.4f}, {with_it.mean():.4f}")
        assert torch.equal(without, with_it) == (package is bitsandbytes)
for make in (lambda: moved(bitsandbytes.optim.RMSprop, centered=True), lambda: moved(bitsandbytes.optim.Adam8bit, amsgrad=True)):
    try:
        make()
    except (NotImplementedError, ValueError) as error:
        print(f"  {type(error).__name__}: {error}")
    else:
        raise SystemExit("the setting is taken")
PYTHON
