#!/usr/bin/env bash
# CTranslate2 converts a GPT-2 without the scaling of attention by its layer.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 ctranslate2==4.8.5 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""CTranslate2 4.8.5: a GPT-2 with `scale_attn_by_inverse_layer_idx` divides attention scores by the number of the layer, counted from one. The
converter does not read it, and says nothing: from the second token on the converted model gives other logits. Without it the two agree.
"""

import ctranslate2
import numpy as np
import torch
from tokenizers import Tokenizer, models
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

words = Tokenizer(models.WordLevel({f"t{place}": place for place in range(64)}, unk_token="t0"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="t0", bos_token="t1", eos_token="t2")
ids = np.array([[7 * place % 60 + 3 for place in range(40)]], dtype=np.int32)
sizes = {"vocab_size": 64, "n_embd": 64, "n_head": 4, "n_layer": 3, "bos_token_id": 1, "eos_token_id": 2}


def difference(scaled):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.15, scale_attn_by_inverse_layer_idx=scaled)).eval()
    model.save_pretrained(f"model-{scaled}")
    tokenizer.save_pretrained(f"model-{scaled}")
    with torch.no_grad():
        wanted = model(torch.from_numpy(ids).long()).logits[0].log_softmax(dim=-1).numpy()
    ctranslate2.converters.TransformersConverter(f"model-{scaled}").convert(f"converted-{scaled}")
    opened = ctranslate2.Generator(f"converted-{scaled}", compute_type="float32")
    view = ctranslate2.StorageView.from_array
    made = opened.forward_batch(view(ids), lengths=view(np.array([40], dtype=np.int32)), return_log_probs=True)
    return abs(np.array(made)[0] - wanted).max(axis=-1)


print(f"ctranslate2 {ctranslate2.__version__}, largest difference of log-probabilities from transformers:")
for scaled in (False, True):
    apart = difference(scaled)
    print(f"  {'scaled by layer' if scaled else 'not scaled'}: {apart[0]:.2g} of the first token, {apart[1:].max():.2g} of the others")
    assert apart[0] < 1e-4 and (apart[1:].max() > 0.1 if scaled else apart[1:].max() < 1e-4)
PYTHON
