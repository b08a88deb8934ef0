#!/usr/bin/env bash
# transformers opens a GGUF file of a model with scaled rotary positions as one without scaling.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 gguf==0.19.0 accelerate==1.15.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""transformers 5.23.0 with `gguf_file=`: of the rotary settings of a Llama or Qwen2 file it reads `rope.freq_base`.
`rope.scaling.type`, `rope.scaling.factor` and the tensor `rope_freqs.weight`, by which GGUF files of Llama 3.1 say their
scaling, are passed over without a word: the model that is fine-tuned from it has `rope_type` "default", and its
config.json says so from then on.
"""

import gguf
import numpy
import transformers
from transformers import AutoModelForCausalLM

HIDDEN, HEADS, MIDDLE, WORDS = 64, 4, 96, 32
generator = numpy.random.default_rng(0)


def written(family: str) -> str:
    writer = gguf.GGUFWriter(f"{family}.gguf", family)
    writer.add_block_count(1)
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MIDDLE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(500_000.0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(1024)
    writer.add_vocab_size(WORDS)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"w{n}" for n in range(WORDS)])
    writer.add_token_merges(["w 0"])
    shapes = {"token_embd.weight": (WORDS, HIDDEN), "output.weight": (WORDS, HIDDEN), "output_norm.weight": (HIDDEN,)}
    shapes |= {f"blk.0.attn_{name}.weight": (HIDDEN, HIDDEN) for name in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.{name}_norm.weight": (HIDDEN,) for name in ("attn", "ffn")}
    shapes |= {f"blk.0.ffn_{name}.weight": (MIDDLE, HIDDEN) for name in ("gate", "up")}
    shapes |= {"blk.0.ffn_down.weight": (HIDDEN, MIDDLE)}
    if family == "qwen2":
        shapes |= {f"blk.0.attn_{name}.bias": (HIDDEN,) for name in ("q", "k", "v")}
    shapes |= {"rope_freqs.weight": (HIDDEN // HEADS // 2,)}
    for name, shape in shapes.items():
        writer.add_tensor(name, generator.standard_normal(shape, dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return f"{family}.gguf"


for family in ("llama", "qwen2"):
    rotary = AutoModelForCausalLM.from_pretrained(".", gguf_file=written(family)).config.rope_parameters
    print(f"transformers {transformers.__version__}, {family}: yarn by 4 in the file, read as {rotary}")
    assert rotary == {"rope_theta": 500_000.0, "rope_type": "default"}
PYTHON
