#!/usr/bin/env bash
# Packed texts of GPT-OSS and Jamba see each other, and those of Llama do not.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""transformers 5.23.0: `DataCollatorWithFlattening` puts texts behind each other and says by positions where each begins. Llama and most
others mask attention by that. GPT-OSS ("eager" attention), OPT and Jamba do not, and say nothing: the second text attends
to the first, or takes over its state. Others with convolutions, as Qwen3-Next and LFM2, refuse instead where `seq_idx` is given.
"""

import torch
import transformers
from transformers import AutoModelForCausalLM, DataCollatorWithFlattening, GptOssConfig, JambaConfig, LlamaConfig, OPTConfig

first, second = ([7 * place % 60 + 3 for place in range(9)], [11 * place % 59 + 3 for place in range(14)])
packed = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)([{"input_ids": first}, {"input_ids": second}])
del packed["labels"]
both = {"vocab_size": 64, "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "pad_token_id": 0}
mlp = {"intermediate_size": 96, "num_key_value_heads": 2}
periods = {"attn_layer_period": 2, "attn_layer_offset": 1}
configs = {
    "Llama": LlamaConfig(**both, **mlp, initializer_range=0.1),
    "GPT-OSS": GptOssConfig(**both, **mlp, head_dim=16, num_local_experts=2, num_experts_per_tok=1, initializer_range=0.1),
    "OPT": OPTConfig(**both, ffn_dim=96, word_embed_proj_dim=64, init_std=0.1),
    "Jamba": JambaConfig(**both, **mlp, **periods, initializer_range=0.1),
}
print(f"transformers {transformers.__version__}, largest difference of logits of the packed texts from each alone:")
for name, config in configs.items():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        wanted = torch.cat([model(torch.tensor([text])).logits for text in (first, second)], dim=1)
        apart = (model(**packed, use_cache=False).logits - wanted).abs().amax(dim=-1)[0]
    print(f"  {name}: {apart[:9].max():.2g} in the first, {apart[9:].max():.2g} in the second")
    assert apart[:9].max() < 1e-4 and (apart[9:].max() < 1e-4 if name == "Llama" else apart[9:].max() > 0.5)
PYTHON
