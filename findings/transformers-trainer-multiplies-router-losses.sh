#!/usr/bin/env bash
# Trainer multiplies the auxiliary loss of routers by the number of accumulated batches.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 accelerate==1.15.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""transformers 5.23.0: with `output_router_logits` a mixture adds `router_aux_loss_coef` times its loss for even use of experts. With
gradient accumulation Trainer divides the loss of tokens by the tokens of all accumulated batches, and adds the batches' auxiliary
losses as they are. 8 rows as one batch of 8, 4 of 2 or 8 of 1 are one loss for a Llama; for a Mixtral the coefficient
becomes 4 and 8 times the one stated, in the loss that is logged and in gradients.
"""

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

transformers.logging.set_verbosity_error()
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2}
texts = [[(3 * row + 5 * place) % 60 for place in range(8)] for row in range(8)]
rows = [{"input_ids": text, "labels": text} for text in texts]


def trained(make, batch):
    torch.manual_seed(0)
    arguments = transformers.TrainingArguments(
        output_dir="out",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        max_steps=1,
        logging_steps=1,
        max_grad_norm=1e9,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=8 // batch,
    )
    trainer = transformers.Trainer(model=make(), args=arguments, train_dataset=rows)
    trainer.train()
    first = trainer.state.log_history[0]
    return first["loss"], first["grad_norm"]


makers = {
    "Llama": lambda: LlamaForCausalLM(LlamaConfig(**sizes)),
    "Mixtral, coefficient 0": lambda: MixtralForCausalLM(MixtralConfig(**sizes, num_local_experts=4, num_key_value_heads=4)),
    "Mixtral, coefficient 1": lambda: MixtralForCausalLM(
        MixtralConfig(**sizes, num_local_experts=4, num_key_value_heads=4, output_router_logits=True, router_aux_loss_coef=1.0)
    ),
}
found = {name: {batch: trained(make, batch) for batch in (8, 2, 1)} for name, make in makers.items()}
print(f"transformers {transformers.__version__}, logged loss and gradient norm of the same 8 rows:")
for name, of in found.items():
    for batch, (loss, norm) in of.items():
        print(f"  {name}, {8 // batch} x {batch} rows: {loss:.3f}, {norm:.3f}")
    if name.endswith("1"):
        alone = {batch: of[batch][0] - found["Mixtral, coefficient 0"][batch][0] for batch in of}
        print("  of which auxiliary: " + ", ".join(f"{loss:.2f}" for loss in alone.values()))
        assert alone[2] > 3.9 * alone[8] and alone[1] > 7.5 * alone[8]
    else:
        assert max(loss for loss, _ in of.values()) - min(loss for loss, _ in of.values()) < 1e-3
PYTHON
