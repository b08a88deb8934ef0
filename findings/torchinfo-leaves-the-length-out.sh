#!/usr/bin/env bash
# torchinfo counts the multiplications of a language model for one token, however long its rows, and tied weights twice.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 torchinfo==1.8.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""torchinfo 1.8.0: `summary` takes a linear layer's multiplications as its weights times the first
dimension of its output, which are the rows: `total_mult_adds` of a Llama is the same for rows of 8
tokens and of 64, so that FLOPs by it are too few by the length. The embedding, which multiplies
nothing, is counted as a matrix. A head that is tied to the embedding is counted in `total_params`
once more.
"""

import torch
import torchinfo
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

sizes = {"vocab_size": 1000, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
print(f"torchinfo {torchinfo.__version__}, a small Llama:")
for tied in (False, True):
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, tie_word_embeddings=tied))
    true = sum(weight.numel() for weight in model.parameters())
    counted = {}
    for shape in ((1, 8), (1, 64), (2, 64)):
        asked = torch.zeros(shape, dtype=torch.long)
        found = torchinfo.summary(model, input_data={"input_ids": asked}, verbose=0)
        with FlopCounterMode(display=False) as counter:
            model(input_ids=asked)
        counted[shape] = found.total_mult_adds, counter.get_total_flops() // 2
        assert found.total_params == 72_800
    print(f"  tied {tied}: {found.total_params} parameters of {true}; multiplications, beside those of PyTorch:")
    print(f"    by rows and tokens: {counted}")
    assert true == (40_800 if tied else 72_800)
    assert [counted[shape][0] for shape in counted] == [72_800, 72_800, 145_600]
    assert counted[1, 64][1] >= 8 * counted[1, 8][1] > 8 * 300_000
PYTHON
