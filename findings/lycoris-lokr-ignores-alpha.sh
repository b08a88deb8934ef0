#!/usr/bin/env bash
# LyCORIS's LoKr ignores alpha from a rank of half the factor on: 32 for layers of 4,096.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 transformers==5.23.0 \
  peft==0.21.2 lycoris-lora==4.1.3
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""lycoris-lora 4.1.3: where both factors of LoKr are whole matrices, which a rank of half the
larger factor is enough for, its scale is 1 whatever `linear_alpha` says, and a rank beyond it
changes nothing. A layer of 256 by 256 is factored into 16 by 16, and so has this from rank 8 on,
and one of 4,096 from 32 on. Its LoRA and LoHa scale by alpha over rank at every rank, as LoKr of
PEFT 0.21.2 does: there the same matrices are an adapter of another strength.
"""

import logging
from importlib.metadata import version

import torch
from lycoris import create_lycoris
from peft import LoKrConfig, get_peft_model

logging.disable(logging.CRITICAL)


def scale(algorithm, rank, alpha):
    """What LyCORIS multiplies an adapter's matrices by."""
    layers = torch.nn.Sequential(torch.nn.Linear(256, 256, bias=False))
    return create_lycoris(layers, 1.0, linear_dim=rank, linear_alpha=alpha, algo=algorithm).loras[0].scale


def scale_in_peft(rank, alpha):
    layers = torch.nn.Sequential(torch.nn.Linear(256, 256, bias=False))
    config = LoKrConfig(r=rank, alpha=alpha, target_modules=["0"], decompose_both=True)
    return get_peft_model(layers, config).base_model.model[0].scaling["default"]


print(f"lycoris-lora {version('lycoris-lora')}, scales by alpha 1, 4 and 32:")
for rank in (4, 7, 8, 16, 64):
    found = {name: [scale(name, rank, alpha) for alpha in (1, 4, 32)] for name in ("lora", "loha", "lokr")}
    found["lokr of PEFT"] = [scale_in_peft(rank, alpha) for alpha in (1, 4, 32)]
    print(f"  rank {rank}: {found}")
    expected = [alpha / rank for alpha in (1, 4, 32)]
    assert found["lora"] == found["loha"] == found["lokr of PEFT"] == expected
    assert found["lokr"] == (expected if rank < 8 else [1.0, 1.0, 1.0])
PYTHON
