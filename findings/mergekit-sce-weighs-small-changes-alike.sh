#!/usr/bin/env bash
# mergekit's SCE weighs all models alike where fine-tuning moved weights by less than about a thousandth.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 mergekit==0.1.5
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""mergekit 0.1.5: `sce` weighs each model, weight by weight, by the mean square of its difference to the
base: of two that differ by 3 and by 1 the first counts nine times as much. Where all these squares
add up to less than 1e-6 it takes the plain mean instead. That is a bound for numbers, not for shares:
a difference of 3e-4, as of a few hundred steps at 1e-5, is below it, so that one model has another
kind of merge in some of its tensors than in others, and the same differences ten times as large are
merged otherwise. Nothing is said.
"""

from importlib.metadata import version

import torch
from mergekit.merge_methods import merge_tensors

torch.manual_seed(0)
base, moved = 0.02 * torch.randn(256, 256), torch.rand(256, 256) + 0.5


def share(step):
    """The share of the first model where it is `step` times 3, and the second one `step`, away from the base."""
    models = [base, base + 3 * step * moved, base + step * moved]
    merged = merge_tensors(models, "sce", parameters={}, base_index=0) - base
    factor = (merged * moved).sum() / (moved * moved).sum() / step
    return ((factor - 1) / 2).item()


print(f"mergekit {version('mergekit')}, share of a model that differs three times as much as the other:")
for step, wanted in ((1e-2, 0.9), (1e-3, 0.9), (4e-4, 0.9), (2e-4, 0.5), (1e-4, 0.5), (1e-5, 0.5)):
    found = share(step)
    print(f"  differences of {3 * step:.0e} and {step:.0e}: {found:.2f}")
    assert abs(found - wanted) < 0.01
PYTHON
