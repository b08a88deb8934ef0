#!/usr/bin/env bash
# transformers opens a GGUF file of StarCoder 2 with a rotary base of 10,000.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 gguf==0.19.0 accelerate==1.15.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""transformers 5.23.0 with `gguf_file=`: it reads `rope.freq_base` of Llama, Qwen and most others, and has no row for it in the table of StarCoder 2,
whose models have a base of about a million, and files say so. The config has the default, 10,000, and nothing is said: the model that
is opened or fine-tuned from it turns positions by other angles than it was trained with.
"""

import gguf
import transformers
from transformers import AutoConfig

transformers.logging.set_verbosity_error()


def opened(architecture):
    writer = gguf.GGUFWriter(f"{architecture}.gguf", architecture)
    writer.add_context_length(16384)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(999_999.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return AutoConfig.from_pretrained(".", gguf_file=f"{architecture}.gguf")


print(f"transformers {transformers.__version__}, rotary base of files that say 999,999:")
for architecture in ("llama", "qwen2", "starcoder2"):
    config = opened(architecture)
    base = config.rope_parameters["rope_theta"]
    print(f"  {architecture}: {base:,.0f}, with {config.num_key_value_heads} heads of keys")
    assert config.model_type == architecture and config.num_key_value_heads == 2
    assert base == (10_000 if architecture == "starcoder2" else 999_999)
PYTHON
