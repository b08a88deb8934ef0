#!/usr/bin/env bash
# optax.adafactor takes its weight decay at every step as it is, not times the learning rate.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 jax==0.10.2 optax==0.2.8
cd "$folder"
env -u PYTHONPATH JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
"""optax 0.2.8: `weight_decay_rate` of `adafactor` is the share of a weight that goes at each step, whatever the learning rate, while `adamw` and `lion` of
optax, and PyTorch's Adafactor and AdamW, take the share times the learning rate. The usual 0.01 leaves after a hundred steps 37% of a weight without
gradients, where the others leave 99.99%, and it does not fade with a schedule that ends in 0.
"""

import jax
import jax.numpy as jnp
import optax
import torch

rate, decay, steps = 1e-4, 0.01, 100


def left_by_optax(optimizer):
    @jax.jit
    def step(weight, state):
        updates, state = optimizer.update(jnp.zeros_like(weight), state, weight)
        return optax.apply_updates(weight, updates), state

    weight = jnp.ones((4, 4))
    state = optimizer.init(weight)
    for _ in range(steps):
        weight, state = step(weight, state)
    return weight[0, 0].item()


def left_by_torch(maker):
    weight = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = maker([weight], lr=rate, weight_decay=decay)
    for _ in range(steps):
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    return weight[0, 0].item()


found = {
    "optax adafactor": left_by_optax(optax.adafactor(rate, weight_decay_rate=decay)),
    "optax adafactor, rate falling to 0": left_by_optax(optax.adafactor(optax.linear_schedule(rate, 0.0, steps), weight_decay_rate=decay)),
    "optax adamw": left_by_optax(optax.adamw(rate, weight_decay=decay)),
    "optax lion": left_by_optax(optax.lion(rate, weight_decay=decay)),
    "PyTorch Adafactor": left_by_torch(torch.optim.Adafactor),
    "PyTorch AdamW": left_by_torch(torch.optim.AdamW),
}
print(f"optax {optax.__version__}, torch {torch.__version__}, weights left of 1 by a decay of {decay} at a rate of {rate} after {steps} steps:")
for name, left in found.items():
    print(f"  {name}: {left:.4f}")
    assert abs(left - ((1 - decay) ** steps if "adafactor" in name else (1 - rate * decay) ** steps)) < 1e-4
PYTHON
