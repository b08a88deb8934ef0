#!/usr/bin/env bash
# onnxruntime-genai's builder normalises OLMo without taking off the mean.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 onnxruntime-genai==0.18.0 onnxruntime==1.32.0 onnx==1.23.2 onnx-ir==1.1.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""The first OLMo has layer norms without weights, which take off the mean. The builder of onnxruntime-genai 0.18.0 has a
class for OLMo that gives them weights of one and writes them as norms by the root mean square: the exported model is another,
and nothing is said. It equals transformers' model once the norms of that are made so. A Llama comes out as it was.
"""

import contextlib
import io
import shutil
from importlib.metadata import version

import numpy as np
import onnxruntime_genai
import torch
from onnxruntime_genai.models.builder import create_model, parse_extra_options
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm

WORDS = 64
ids = [7 * place % 60 + 3 for place in range(40)]


def by_root_mean_square(self, hidden):
    return torch.nn.functional.rms_norm(hidden, self.normalized_shape, eps=1e-6)


def exported():
    shutil.rmtree("exported", ignore_errors=True)
    arguments = ("", "model", "exported", "fp32", "cpu", "cache")
    with contextlib.redirect_stdout(io.StringIO()):
        create_model(*arguments, **parse_extra_options(*arguments, []))
    opened = onnxruntime_genai.Model("exported")
    settings = onnxruntime_genai.GeneratorParams(opened)
    settings.set_search_options(max_length=len(ids) + 1)
    generator = onnxruntime_genai.Generator(opened, settings)
    generator.append_tokens(np.array(ids, dtype=np.int32))
    return generator.get_output("logits").reshape(-1, WORDS)[-1]


def saved(family):
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family,
        vocab_size=WORDS,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=256,
        initializer_range=0.15,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
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
    return model


def last(model):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1].numpy()


llama = abs(last(saved("llama")) - exported()).max()
model = saved("olmo")
got = exported()
olmo = abs(last(model) - got).max()
OlmoLayerNorm.forward = by_root_mean_square
changed = abs(last(model) - got).max()
print(f"onnxruntime-genai {version('onnxruntime-genai')}, largest difference of the last logits from transformers:")
print(f"  Llama {llama:.2g}; OLMo {olmo:.2g}; OLMo with norms by the root mean square {changed:.2g}")
assert llama < 1e-4 and olmo > 1e-1 and changed < 1e-3
PYTHON
