#!/usr/bin/env bash
# TRL's loss without whole logits takes more memory than whole logits would where the vocabulary is small.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 trl==1.16.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""trl 1.16.0: SFTTrainer's loss makes logits in tiles of 4,096 tokens x 32,768 words. The buffer of a tile is as wide whatever the
vocabulary is: with 512 words, 4,096 tokens take a buffer of 256 MiB, where whole logits take 8 MiB in float32.
Small models made for tests, characters or other symbols take more memory than with whole logits.
"""

import torch
import trl
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM
from trl.trainer.utils import add_fused_lm_head

WORDS, TOKENS = 512, 4096


class Largest(TorchDispatchMode):
    """The largest tensor that is made."""

    nbytes, shape = 0, None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.untyped_storage().nbytes() > self.nbytes:
            self.nbytes, self.shape = made.untyped_storage().nbytes(), tuple(made.shape)
        return made


sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": WORDS}
model = LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=TOKENS)).to(torch.bfloat16)
rows = {"input_ids": torch.randint(0, WORDS, (1, TOKENS)), "labels": torch.randint(0, WORDS, (1, TOKENS))}
with Largest() as whole, torch.no_grad():
    model(**rows)
add_fused_lm_head(model)
with Largest() as tiled, torch.no_grad():
    model(**rows, fused_lm_head=True)
print(f"trl {trl.__version__}, {WORDS} words, {TOKENS} tokens, bfloat16")
print(f"transformers' loss: the largest tensor is {whole.shape}, {whole.nbytes / 2**20:.0f} MiB")
print(f"trl's: {tiled.shape}, {tiled.nbytes / 2**20:.0f} MiB")
assert tiled.shape == (TOKENS - 1, 32768)
assert whole.nbytes < tiled.nbytes / 8
PYTHON
