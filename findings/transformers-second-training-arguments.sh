#!/usr/bin/env bash
# A second TrainingArguments breaks a Trainer of transformers that was made before it.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 accelerate==1.15.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""transformers 5.23.0: making a second `TrainingArguments`, as a script does that trains two models or compares two
learning rates, resets the state of Accelerate that all Accelerators share. A Trainer that was made before then fails in
`train()`. Make each TrainingArguments right before its Trainer, and train before the next.
"""

import torch
import transformers


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)

    def forward(self, x, labels=None):
        return {"loss": (self.linear(x) - labels).square().mean()}


def arguments():
    return transformers.TrainingArguments(output_dir="out", use_cpu=True, report_to=[], max_steps=1, save_strategy="no")


rows = [{"x": torch.ones(2), "labels": torch.ones(1)}] * 8
alone = transformers.Trainer(model=Model(), args=arguments(), train_dataset=rows)
alone.train()

first = transformers.Trainer(model=Model(), args=arguments(), train_dataset=rows)
arguments()
try:
    first.train()
    raise SystemExit("the first Trainer trains: the behaviour has changed")
except AttributeError as error:
    print(f"transformers {transformers.__version__}: {error}")
    assert "AcceleratorState" in str(error)
PYTHON
