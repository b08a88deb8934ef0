#!/usr/bin/env bash
# optax.amsgrad takes small steps for ever after one large gradient at the start, where PyTorch's AMSGrad does not.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 jax==0.10.2 optax==0.2.8
cd "$folder"
env -u PYTHONPATH JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
"""optax 0.2.8: `amsgrad` keeps the largest of the second moments after their bias is corrected; that of the first step is the first gradient's
whole square. PyTorch, as the paper, keeps the largest of the plain moments, where the first gradient counts a thousandth. So of gradients
of 1 after a first one of 10, optax moves a weight by a tenth of the learning rate a step for the rest of a training, and PyTorch's
AMSGrad, as Adam of either, soon by all of it. Where gradients are alike from the start, all agree.
"""

import jax
import jax.numpy as jnp
import optax
import torch

rate, steps = 0.01, 2_000


def moved_by_optax(transformation, first):
    @jax.jit
    def step(weight, state, gradient):
        update, state = transformation.update(gradient, state, weight)
        return optax.apply_updates(weight, update), state

    weight = jnp.zeros(1)
    state = transformation.init(weight)
    for number in range(steps):
        weight, state = step(weight, state, jnp.array([first if number == 0 else 1.0]))
    return -weight.item() / rate


def moved_by_torch(first, **settings):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([weight], lr=rate, **settings)
    for number in range(steps):
        weight.grad = torch.tensor([first if number == 0 else 1.0])
        optimizer.step()
    return -weight.item() / rate


print(f"optax {optax.__version__}, torch {torch.__version__}, learning rates moved in {steps:,} steps:")
for first in (1.0, 3.0, 10.0):
    found = {
        "optax amsgrad": moved_by_optax(optax.amsgrad(rate), first),
        "optax adam": moved_by_optax(optax.adam(rate), first),
        "PyTorch AMSGrad": moved_by_torch(first, amsgrad=True),
        "PyTorch Adam": moved_by_torch(first),
    }
    print(f"  first gradient {first:g}: " + ", ".join(f"{name} {value:,.0f}" for name, value in found.items()))
    assert abs(found.pop("optax amsgrad") / (steps / first) - 1) < 0.03
    assert all(value > 0.9 * steps for value in found.values())
PYTHON
