#!/usr/bin/env bash
# CTranslate2 scales the attention of Gemma 2 and 3 by the size of a head, whatever the config says.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 ctranslate2==4.8.5
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""CTranslate2 4.8.5: Gemma 2 and 3 divide attention scores by the root of `query_pre_attn_scalar`. The converter does not
read it: the converted model divides by the root of the head size. The two are one in most sizes, not in the 27B models
(144 and 168 beside heads of 128), which come out as other models without a word.
"""

import shutil
from importlib.metadata import version

import ctranslate2
import numpy as np
import torch
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

WORDS, HEAD = 64, 16
ids = [7 * place % 60 + 3 for place in range(40)]


def difference(family, scalar):
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family,
        vocab_size=WORDS,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HEAD,
        initializer_range=0.15,
        query_pre_attn_scalar=scalar,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
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
    return abs(np.array(generator.forward_batch([[f"w{number}" for number in ids]]))[0, :, :WORDS] - wanted).max()


print(f"ctranslate2 {version('ctranslate2')}, heads of {HEAD}, largest difference of logits from transformers:")
for family in ("gemma2", "gemma3_text"):
    same, other = difference(family, HEAD), difference(family, HEAD * 9 // 8)
    print(f"  {family}: query_pre_attn_scalar {HEAD}: {same:.2g}; {HEAD * 9 // 8}: {other:.2g}")
    assert same < 1e-4 and other > 1e-2
PYTHON
