#!/usr/bin/env bash
# optax.inject_hyperparams turns AdamW's updates of bfloat16 parameters into NaN.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 optax==0.2.8 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
"""optax 0.2.8: inject_hyperparams, by which a learning rate is read out or set while a model trains, casts every setting to the type of
the gradients. In bfloat16 a second factor of 0.999 is 1: the mean of squares stays 0, its correction divides by 0, and the first update
is NaN. A factor of 0.99 is 0.988 and a rate of 0.0003 is 0.000299. The same AdamW alone, or with hyperparam_dtype, trains.
"""

import jax.numpy as jnp
import optax


def first(optimizer, dtype):
    weights = jnp.ones(4, dtype)
    state = optimizer.init(weights)
    updates, state = optimizer.update(jnp.full(4, 0.5, dtype), state, weights)
    return float(updates[0]), state


settings = {"learning_rate": 0.01, "weight_decay": 0.0}
print(f"optax {optax.__version__}, the first update of AdamW at a rate of 0.01:")
for dtype in (jnp.float32, jnp.bfloat16):
    alone, _ = first(optax.adamw(**settings), dtype)
    injected, state = first(optax.inject_hyperparams(optax.adamw)(**settings), dtype)
    wide, _ = first(optax.inject_hyperparams(optax.adamw, hyperparam_dtype=jnp.float32)(**settings), dtype)
    factor = float(state.hyperparams["b2"])
    print(f"  {dtype.__name__}: alone {alone:.4f}, injected {injected:.4f} with b2 {factor}, injected as float32 {wide:.4f}")
    assert abs(alone + 0.01) < 1e-4 and abs(wide + 0.01) < 1e-4
    if dtype is jnp.float32:
        assert abs(injected + 0.01) < 1e-4
    else:
        assert factor == 1.0 and injected != injected
PYTHON
