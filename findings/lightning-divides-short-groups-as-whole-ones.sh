#!/usr/bin/env bash
# Lightning divides the gradient of an epoch's last, shorter group of batches as that of a whole one.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 lightning==2.6.6 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""lightning 2.6.6: `accumulate_grad_batches=4` over 5 batches makes two steps, of 4 batches and of one. The loss of every batch is divided by 4, so
that the second step has a quarter of that batch's gradient: with few batches in an epoch a good part of the training is too weak.
`Trainer` of transformers divides by the batches that there are.
"""

import logging
import warnings

import lightning
import torch

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = []

    def training_step(self, batch, place):
        return (self.weight * batch).mean()

    def on_before_optimizer_step(self, optimizer):
        self.seen.append(self.weight.grad.item())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


def gradients(batches, grouped):
    off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    model = Model()
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", accumulate_grad_batches=grouped, **off)
    trainer.fit(model, torch.utils.data.DataLoader(torch.ones(batches, 1), batch_size=1))
    return model.seen


print(f"lightning {lightning.__version__}, gradients of the steps where each batch alone has 1:")
for batches in (8, 5, 7):
    print(f"  {batches} batches, 4 a step: {gradients(batches, 4)}")
assert gradients(8, 4) == [1.0, 1.0] and gradients(5, 4) == [1.0, 0.25] and gradients(7, 4) == [1.0, 0.75]
PYTHON
