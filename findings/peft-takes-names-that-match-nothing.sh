#!/usr/bin/env bash
# PEFT says nothing of a target, layer or module to save that the model does not have.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 peft==0.21.2
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""peft 0.21.2: a `target_modules` of which no name matches is refused, and a key of `rank_pattern` that matches nothing is warned of. A misspelt name
beside one that matches, a layer of `layers_to_transform` that the model does not have, and a misspelt `modules_to_save` are passed
over: fewer layers are trained, and a head or embedding that was to be trained and saved is neither. Nothing is said.
"""

import warnings

import peft
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


def trained(**settings):
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4)
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = get_peft_model(model, LoraConfig(**{"target_modules": ["q_proj"], **settings}))
    said = [str(warning.message) for warning in caught if "match" in str(warning.message) or "modules" in str(warning.message)]
    return sum(weight.requires_grad for weight in model.parameters()), said


print(f"peft {peft.__version__}, weights that are trained, and warnings:")
for settings, count, warns in (
    ({}, 6, False),
    ({"target_modules": ["q_proj", "v_prj"]}, 6, False),
    ({"target_modules": ["q_proj", "v_proj"]}, 12, False),
    ({"layers_to_transform": [1, 3]}, 2, False),
    ({"modules_to_save": ["lm_heads"]}, 6, False),
    ({"modules_to_save": ["lm_head"]}, 7, False),
    ({"rank_pattern": {"v_prj": 4}}, 6, True),
):
    found, said = trained(**settings)
    print(f"  {settings}: {found}, {said}")
    assert found == count and bool(said) == warns
try:
    trained(target_modules=["v_prj"])
except ValueError as error:
    print(f"  target_modules of ['v_prj'] alone: {str(error)[:70]}")
else:
    raise SystemExit("a target that matches nothing is taken")
PYTHON
