#!/usr/bin/env bash
# The eval_loss of Trainer is another number for another batch size.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 accelerate==1.15.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""transformers 5.24.0: in training, Trainer divides the losses of all tokens of a step by their number, however they are batched. In
evaluation it takes the mean of each batch and weighs it by its rows: a row with two answer tokens counts as much as one with forty,
unless they share a batch. So losses and perplexities of the same model and rows differ by the batch size, and from training's, and say nothing.
"""

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

transformers.logging.set_verbosity_error()
torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 1}
model = LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.5))
rows = []
for row in range(16):
    ids = torch.randint(64, (48,), generator=torch.Generator().manual_seed(row)).tolist()
    answer = (2, 40, 3, 9, 25)[row % 5]
    rows.append({"input_ids": ids, "labels": [-100] * (48 - answer) + ids[48 - answer :]})


def losses(batch):
    arguments = TrainingArguments(
        output_dir="out",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_steps=1,
        max_steps=1,
        learning_rate=0.0,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=16 // batch,
        per_device_eval_batch_size=batch,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    return trainer.state.log_history[0]["loss"], trainer.evaluate()["eval_loss"]


model.eval()
with torch.no_grad():
    alone = []
    for row in rows:
        ids, labels = (torch.tensor([row[name]]) for name in ("input_ids", "labels"))
        alone.append((model(ids, labels=labels).loss.item(), (labels >= 0).sum().item()))
by_token = sum(loss * count for loss, count in alone) / sum(count for _, count in alone)
by_row = sum(loss for loss, _ in alone) / len(alone)
found = {batch: losses(batch) for batch in (1, 2, 4, 16)}
print(f"transformers {transformers.__version__}, mean loss of all tokens {by_token:.4f}, of the rows' means {by_row:.4f}:")
for batch, (train, evaluated) in found.items():
    print(f"  batches of {batch}: training {train:.4f}, evaluation {evaluated:.4f}")
    assert abs(train - by_token) < 1e-3
assert abs(found[16][1] - by_token) < 1e-3 and abs(found[1][1] - by_row) < 1e-3 and abs(by_row - by_token) > 0.02
assert len({round(evaluated, 2) for _, evaluated in found.values()}) == 4
PYTHON
