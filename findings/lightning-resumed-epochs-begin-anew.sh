#!/usr/bin/env bash
# An epoch that Lightning resumes trains its first rows again and leaves out its last.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 lightning==2.6.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""lightning 2.6.6: a checkpoint from within an epoch holds how many batches were trained on. Resumed from it, the loop counts on from there and
takes its rows from the start of the data: after four of ten batches, the first four rows are trained on twice and the last four not at
all. `batch_idx` says 4 for the first row. A warning says that results can be unreliable, not which rows are lost.
"""

import logging
from importlib.metadata import version

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append((batch_idx, int(batch)))
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trained(resumed, shuffle, **settings):
    torch.manual_seed(0)
    model = Model()
    trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, **settings)
    rows = torch.utils.data.DataLoader(torch.arange(10.0)[:, None], batch_size=1, shuffle=shuffle)
    trainer.fit(model, rows, ckpt_path=f"{shuffle}/four.ckpt" if resumed else None)
    return model.seen


print(f"lightning {version('lightning')}, rows of a first epoch:")
for shuffle in (False, True):
    whole = trained(False, shuffle, max_epochs=1, enable_checkpointing=False)
    saver = ModelCheckpoint(str(shuffle), filename="four", every_n_train_steps=4)
    before = trained(False, shuffle, max_steps=4, callbacks=[saver])
    after = trained(True, shuffle, max_epochs=1, enable_checkpointing=False)
    rows, first, then = ([row for _, row in seen] for seen in (whole, before, after))
    print(f"  shuffle={shuffle}: in one piece {rows}; four of them {first}, resumed {then}")
    assert rows[:4] == first and then == rows[:6] and sorted(rows) == list(range(10))
    assert after[0] == (4, rows[0])
PYTHON
