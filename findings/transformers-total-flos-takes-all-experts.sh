#!/usr/bin/env bash
# Trainer's total_flos takes every token through every expert, and a tied head as nothing.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 accelerate==1.15.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""transformers 5.23.0: `total_flos` of a Trainer's state is six times the parameters without the embedding, times the tokens. Of a mixture that is
all its experts, however few a token goes through: top 1 and top 8 of 8 are the same, and utilisation computed from it is several times too high.
A head that is tied to the embedding goes with the embedding, though it multiplies as much as one of its own.
"""

import transformers
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

transformers.logging.set_verbosity_error()
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2}
rows = [{"input_ids": list(range(8)), "labels": list(range(8))}] * 8


def flops(model):
    arguments = transformers.TrainingArguments(
        output_dir="out", use_cpu=True, report_to=[], max_steps=1, save_strategy="no", disable_tqdm=True
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    return int(trainer.state.total_flos)


def mixtral(chosen):
    return MixtralForCausalLM(MixtralConfig(**sizes, num_key_value_heads=4, num_local_experts=8, num_experts_per_tok=chosen))


of_experts = {chosen: flops(mixtral(chosen)) for chosen in (1, 2, 8)}
of_heads = {tied: flops(LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=tied))) for tied in (True, False)}
print(f"transformers {transformers.__version__}, total_flos of one step with 64 tokens:")
for chosen, found in of_experts.items():
    print(f"  Mixtral, {chosen} of 8 experts: {found:,}")
for tied, found in of_heads.items():
    print(f"  Llama, {'tied head' if tied else 'a head of its own'}: {found:,}")
assert len(set(of_experts.values())) == 1
assert of_heads[False] - of_heads[True] == 6 * 64 * 64 * 32
PYTHON
