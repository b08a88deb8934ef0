#!/usr/bin/env bash
# optax.masked moves the parameters that it leaves out, by their whole gradient, uphill.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6 jax==0.10.2 optax==0.2.8
cd "$folder"
env -u PYTHONPATH JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
"""optax 0.2.8: `masked` runs an optimizer for some parameters and hands the gradients of the others on as they came; `apply_updates` then adds them. So
an adapter trained with its base masked out has the base moved by plain gradients, without sign and learning rate, and the loss rises. What is to
stay needs `optax.freeze`, or `multi_transform` with `set_to_zero`. adamw's own `mask` is about its weight decay alone.
"""

import jax
import jax.numpy as jnp
import optax

parameters = {"adapter": jnp.array(3.0), "base": jnp.array(1.0)}
trained = {"adapter": True, "base": False}
labels = {"adapter": "trained", "base": "still"}


def loss(given):
    return (given["adapter"] ** 2 + given["base"] ** 2) / 2


def run(optimizer):
    given, state = parameters, optimizer.init(parameters)
    for _ in range(5):
        updates, state = optimizer.update(jax.grad(loss)(given), state, given)
        given = optax.apply_updates(given, updates)
    return {name: value.item() for name, value in given.items()}


still = {"adapter": False, "base": True}
print(f"optax {optax.__version__}, after five steps from {loss(parameters).item():g}:")
for name, optimizer in {
    "masked": optax.masked(optax.sgd(0.1), trained),
    "masked and freeze": optax.chain(optax.masked(optax.sgd(0.1), trained), optax.freeze(still)),
    "multi_transform": optax.multi_transform({"trained": optax.sgd(0.1), "still": optax.set_to_zero()}, labels),
}.items():
    found = run(optimizer)
    print(f"  {name}: {found}, loss {loss(found):g}")
    assert abs(found["adapter"] - 3 * 0.9**5) < 1e-5
    assert found["base"] == (2**5 if name == "masked" else 1)
PYTHON
