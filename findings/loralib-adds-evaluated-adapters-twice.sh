#!/usr/bin/env bash
# A model with loralib's layers that is saved after an evaluation has its adapters twice when it is loaded.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check loralib==0.1.2 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""loralib 0.1.2 adds the adapter to the weight as a layer goes into evaluation mode, and takes it off again in training mode. Which of both a state_dict is of is not
in it: one that is saved in evaluation mode, as the best model of a run often is, has the adapter in the weight and beside it, and a new layer adds it once more. A
layer in evaluation mode that loads one saved in training mode leaves the adapter out. Save and load in training mode.
"""

from importlib.metadata import version

import loralib
import torch

torch.manual_seed(0)
inputs = torch.randn(3, 8)


def built():
    layer = loralib.Linear(8, 8, r=2, lora_alpha=2, bias=False)
    torch.nn.init.normal_(layer.lora_B)
    return layer


trained = built()
base = inputs @ trained.weight.detach().T
part = trained(inputs).detach() - base
print(f"loralib {version('loralib')}, how many times a loaded layer applies its adapter:")
expected = {("train", "train"): 1, ("eval", "eval"): 1, ("eval", "train"): 2, ("train", "eval"): 0}
for (saved, loaded), times in expected.items():
    trained.train(saved == "train")
    layer = built()
    layer.train(loaded == "train")
    layer.load_state_dict({name: value.clone() for name, value in trained.state_dict().items()})
    layer.train(False)
    found = ((layer(inputs).detach() - base) * part).sum() / part.square().sum()
    print(f"  saved in {saved} mode, loaded in {loaded} mode: {found:.2f}")
    assert abs(found - times) < 1e-4
PYTHON
