#!/usr/bin/env bash
# Of a model that is broken, Trainer reports a loss of 0.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 accelerate==1.15.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""transformers 5.24.0: Trainer leaves losses that are NaN or infinite out of what it logs and puts the mean of the others since the last log
in their place. Once all are NaN that is 0: the curve falls to 0, and `train_loss`, the mean over the run, looks better with each step
after the failure. The gradients' norm shows it. `logging_nan_inf_filter=False` logs NaN; the filter is on unless told otherwise.
"""

import math

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

transformers.logging.set_verbosity_error()
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 1}
texts = [[(3 * row + 5 * place) % 60 for place in range(8)] for row in range(8)]
rows = [{"input_ids": text, "labels": text} for text in texts]


class Breaks(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, model, **others):
        if state.global_step == 6:
            model.lm_head.weight.data[0, 0] = math.nan


def logged(filtered):
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir="out",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        max_steps=16,
        logging_steps=4,
        learning_rate=1e-3,
        logging_nan_inf_filter=filtered,
    )
    trainer = Trainer(LlamaForCausalLM(LlamaConfig(**sizes)), arguments, train_dataset=rows, callbacks=[Breaks()])
    total = trainer.train().training_loss
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], total


print(f"transformers {transformers.__version__}, losses logged at steps 4, 8, 12 and 16 of a model that is NaN after step 6, and train_loss:")
for filtered in (True, False):
    losses, total = logged(filtered)
    print(f"  {'as it is' if filtered else 'logging_nan_inf_filter=False'}: {', '.join(f'{loss:.3f}' for loss in losses)}; {total:.3f}")
    if filtered:
        assert 3 < losses[1] < losses[0] and losses[2:] == [0, 0] and total < losses[0] / 1.8
    else:
        assert all(math.isnan(loss) for loss in (*losses[1:], total))
PYTHON
