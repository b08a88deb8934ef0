#!/usr/bin/env bash
# PEFT adapts the stacked experts of DeepSeek V3, and none of the same language model inside Kimi K2.5.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""peft 0.21.2 with transformers 5.23.0: experts are stacked parameters, which targets that name layers (`all-linear`,
or `gate_proj`, `up_proj`, `down_proj`) reach by a table of families. It is asked for the family of the whole model. So
adapters of DeepSeek V3 hang on its experts, and those of Kimi K2.5, whose language model is a DeepSeek V3, on none of
them, without a word.
"""

import peft
import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
SIZES |= {"intermediate_size": 64, "moe_intermediate_size": 16, "n_routed_experts": 8, "num_experts_per_tok": 2}
SIZES |= {"first_k_dense_replace": 0, "n_group": 2, "topk_group": 1, "q_lora_rank": 16, "kv_lora_rank": 16}
SIZES |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}


def adapted_experts(config, auto_class):
    """How many adapters of experts there are."""
    with torch.device("meta"):
        model = auto_class.from_config(config)
    model = get_peft_model(model, LoraConfig(target_modules="all-linear"), low_cpu_mem_usage=True)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return sum(".mlp.experts." in name for name in names)


alone = CONFIG_MAPPING["deepseek_v3"](**SIZES)
whole = CONFIG_MAPPING["kimi_k25"](text_config={"model_type": "deepseek_v3", **SIZES})
assert whole.get_text_config().model_type == "deepseek_v3"
found = adapted_experts(alone, AutoModelForCausalLM), adapted_experts(whole, AutoModelForImageTextToText)
print(f"peft {peft.__version__}, transformers {transformers.__version__}: adapters of experts {found}")
assert found[0] > 0 and found[1] == 0
PYTHON
