#!/usr/bin/env bash
# CTranslate2 converts Gemma 2 without the soft caps of its attention scores and logits.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 ctranslate2==4.8.5
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""CTranslate2 4.8.5: every Gemma 2 bends attention scores and logits by a tanh (`attn_logit_softcapping`,
`final_logit_softcapping`). The converter reads neither of a Gemma 2 and says nothing: logits beyond 30, which the model
cannot have, come out, and beyond the first token it attends otherwise. With both set to none it gives transformers' logits.
"""

import shutil
from importlib.metadata import version

import ctranslate2
import numpy as np
import torch
from tokenizers import Tokenizer, models
from transformers import Gemma2Config, Gemma2ForCausalLM, PreTrainedTokenizerFast

WORDS = 64
ids = [7 * place % 60 + 3 for place in range(40)]


def difference(scores, logits):
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=WORDS,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        query_pre_attn_scalar=16,
        initializer_range=0.6,
        attn_logit_softcapping=scores,
        final_logit_softcapping=logits,
    )
    model = Gemma2ForCausalLM(config).eval()
    model.save_pretrained("model")
    words = {f"w{number}": number for number in range(3, WORDS)} | {"<unk>": 0, "<bos>": 1, "<eos>": 2}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<unk>")),
        unk_token="<unk>",
        bos_token="<bos>",
        eos_token="<eos>",
    ).save_pretrained("model")
    shutil.rmtree("converted", ignore_errors=True)
    ctranslate2.converters.TransformersConverter("model").convert("converted")
    with torch.no_grad():
        wanted = model(torch.tensor([ids])).logits[0].numpy()
    generator = ctranslate2.Generator("converted", compute_type="float32")
    got = np.array(generator.forward_batch([[f"w{number}" for number in ids]]))[0, :, :WORDS]
    return abs(got - wanted).max(axis=-1), abs(got).max()


print(f"ctranslate2 {version('ctranslate2')}, largest difference of logits from transformers:")
for scores, logits in ((None, None), (50.0, None), (None, 30.0)):
    apart, largest = difference(scores, logits)
    print(f"  caps {scores}, {logits}: first token {apart[0]:.2g}, others {apart[1:].max():.2g}; largest logit {largest:.3g}")
    if scores:
        assert apart[0] < 1e-3 and apart[1:].max() > 0.1
    elif logits:
        assert apart.max() > 0.1 and largest > logits
    else:
        assert apart.max() < 1e-3
PYTHON
