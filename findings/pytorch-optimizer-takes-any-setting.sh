#!/usr/bin/env bash
# pytorch_optimizer's optimizers take settings that they do not have, and train without them.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 pytorch_optimizer==4.1.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""pytorch_optimizer 4.1.0: nearly all of its optimizers end their settings with `**kwargs` and look at none of those. SM3, Gravity and A2Grad
take `weight_decay` and decay nothing, CAME takes Adam's `eps` and has two of its own, and a misspelt name changes nothing either, where
PyTorch's optimizers refuse it. Some show the setting in their groups, as if it were in use. Nothing is said.
"""

from importlib.metadata import version

import pytorch_optimizer
import torch


def trained(maker, **settings):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = maker([weight], lr=1e-2, **settings)
    for _ in range(5):
        weight.grad = torch.full((4, 4), 0.5)
        optimizer.step()
    return weight.detach()


print(f"pytorch_optimizer {version('pytorch_optimizer')}, torch {torch.__version__}, a weight after five steps; with the setting:")
for name, settings, used in (
    ("Lion", {"weight_decay": 0.5}, True),
    ("SM3", {"weight_decay": 0.5}, False),
    ("Gravity", {"weight_decay": 0.5}, False),
    ("A2Grad", {"weight_decay": 0.5}, False),
    ("CAME", {"eps": 0.5}, False),
    ("Lion", {"wieght_decay": 0.5}, False),
):
    maker = getattr(pytorch_optimizer, name)
    plain, told = trained(maker), trained(maker, **settings)
    print(f"  {name}, {settings}: {plain[0, 0]:.4f}; {told[0, 0]:.4f}")
    assert torch.equal(plain, told) != used
taking, refusing = [], []
for name in pytorch_optimizer.get_supported_optimizers():
    maker = pytorch_optimizer.load_optimizer(name)
    try:
        maker([torch.nn.Parameter(torch.ones(4, 4))], no_such_setting=1)
        taking.append(name)
    except Exception as error:
        if "no_such_setting" in str(error):
            refusing.append(name)
print(f"  no_such_setting: {len(taking)} take it, {len(refusing)} refuse it ({', '.join(refusing)})")
assert len(taking) > 100 and {"adamw", "sgd"} <= set(refusing) and len(refusing) < 15
PYTHON
