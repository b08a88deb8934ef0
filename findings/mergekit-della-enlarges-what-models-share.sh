#!/usr/bin/env bash
# mergekit's della, given the same model several times, moves the base further than that model did.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 mergekit==0.1.5
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""mergekit 0.1.5: `della` drops differences to the base by chance, makes those that stay larger by one over the share that stays, and then divides
the sum at each place by the weights of the models whose difference stayed there. The second division undoes the chance that others were
dropped, for which the first one made up: three copies of a model with `density` 0.1 give almost three times its difference, and two with 0.5 one
and a half. One copy gives the difference itself; so do `della_linear`, which divides by all weights, and `ties`, dropping nothing.
"""

from importlib.metadata import version

import torch
from mergekit.merge_methods import merge_tensors

torch.manual_seed(0)
base = torch.zeros(500, 500)
model = torch.randn(500, 500)


def share(method, copies, density):
    settings = {"weight": 1.0, "density": density}
    if method != "ties":
        settings["epsilon"] = 0.05
    if method == "della_linear":
        settings["normalize"] = True
    merged = merge_tensors([base] + [model] * copies, method, parameters=settings, base_index=0)
    return ((merged * model).sum() / (model * model).sum()).item()


print(f"mergekit {version('mergekit')}, of a model's difference to the base, merged with itself:")
for density in (1.0, 0.5, 0.1):
    for copies in (1, 2, 3):
        found = {method: share(method, copies, density) for method in ("della", "della_linear", "ties") if method != "ties" or density == 1}
        print(f"  density {density}, {copies} times: " + ", ".join(f"{method} {value:.2f}" for method, value in found.items()))
        wanted = (1 - (1 - density) ** copies) / density
        assert abs(found.pop("della") / wanted - 1) < 0.12
        assert all(abs(value - 1) < 0.12 for value in found.values())
PYTHON
