#!/usr/bin/env bash
# Where a tokenizer adds its end token, lm-eval gives every one-token choice the same score.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 accelerate==1.15.0 tokenizers==0.23.3 lm-eval==0.4.13
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""lm-eval 0.4.13 encodes a question alone and a question with an answer, and takes as the answer what is behind as many tokens as the
question has. A tokenizer that adds an end token, as `add_eos_token` sets for training, has it behind both: the answer loses its first
token and gains the end token. Choices of one token, A to D, all become the end token behind the end token: all have the same score,
and the first one is always taken. No warning is given.
"""

from importlib.metadata import version

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["<unk>", "<s>", "</s>", "A", "B", "C", "D", "Answer:", "one", "two"]
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=len(WORDS), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.3
)
model = LlamaForCausalLM(config).eval()


def tokenizer(template):
    """A tokenizer of whole words that adds special tokens by a template."""
    own = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    own.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    own.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<s>", 1), ("</s>", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=own, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>")


def logarithm(ids, target):
    """The model's own logarithm of the probability of a token."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)[target].item()


question, choices, end = [1, 8, 9, 7], [3, 4, 5, 6], 2
right = [logarithm(question, choice) for choice in choices]
wrong = [logarithm([*question, end], end)] * len(choices)
print(f"lm-eval {version('lm-eval')}, logarithms of the probabilities of A, B, C, D:")
for template, expected in (("<s> $A", right), ("<s> $A </s>", wrong)):
    harness = HFLM(pretrained=model, tokenizer=tokenizer(template), batch_size=1, device="cpu")
    requests = [Instance("loglikelihood", {}, ("one two Answer:", f" {WORDS[choice]}"), index) for index, choice in enumerate(choices)]
    found = [score for score, _ in harness.loglikelihood(requests, disable_tqdm=True)]
    print(f"  {template}:", *(f"{score:.3f}" for score in found))
    assert max(abs(one - two) for one, two in zip(found, expected, strict=True)) < 1e-3
assert len({round(score, 3) for score in right}) == len(choices)
PYTHON
