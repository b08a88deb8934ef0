#!/usr/bin/env bash
# Flax's LayerNorm gives numbers a hundred times too large where a row's mean is large beside its spread.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 flax==0.12.8 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
"""flax 0.12.8: LayerNorm, of linen and of nnx, takes the variance as the mean of squares less the square of the mean. In float32 the
two are alike to seven digits, so that of a row around 1,000 with a spread of 0.1 nothing is left of the variance: where it comes out below
0 it is taken as 0, and the row is divided by the root of epsilon. Outputs that should spread by 1 spread by up to a hundred.
Around 100 they are off by some percent. The default, use_fast_variance=True, does so; without it, and in PyTorch, it is right.
"""

from importlib.metadata import version

import flax.linen as linen
import numpy as np
import torch
from flax import nnx

print(f"flax {version('flax')}, torch {torch.__version__}: spreads of normalised rows, which should be 1")
generator = np.random.default_rng(0)
noise = (0.1 * generator.standard_normal((64, 512))).astype(np.float32)
for mean in (0, 100, 1000):
    rows = noise + np.float32(mean)
    params = {"params": {"scale": np.ones(512, np.float32), "bias": np.zeros(512, np.float32)}}
    spreads = {
        "torch": torch.nn.functional.layer_norm(torch.tensor(rows), (512,), eps=1e-6).numpy().std(-1),
        "linen": np.asarray(linen.LayerNorm().apply(params, rows)).std(-1),
        "nnx": np.asarray(nnx.LayerNorm(512, rngs=nnx.Rngs(0))(rows)).std(-1),
        "linen, slow": np.asarray(linen.LayerNorm(use_fast_variance=False).apply(params, rows)).std(-1),
    }
    print(f"  around {mean}: " + "; ".join(f"{name} {found.min():.3f} to {found.max():.3f}" for name, found in spreads.items()))
    for name, found in spreads.items():
        off = np.abs(found - 1).max()
        assert off > (0 if mean == 0 else 0.01 if mean == 100 else 50) if name in ("linen", "nnx") and mean else off < 0.01
PYTHON
