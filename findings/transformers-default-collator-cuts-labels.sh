#!/usr/bin/env bash
# Where a batch's first label is a whole number, transformers cuts the fractions off all its others.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""transformers 5.24.0: `default_data_collator`, which Trainer takes unless it is given a tokenizer, makes labels whole numbers where that of the
batch's first row is one: scores of 4, 4.5 and 4.9, as rows of a JSON file have them, are trained on as 4, and in a batch that
begins with 4.5 as they are. So the loss depends on the order of rows. Other columns, and PyTorch's own collator, keep fractions.
"""

import torch
import transformers
from torch.utils.data import default_collate
from transformers import default_data_collator

print(f"transformers {transformers.__version__}, torch {torch.__version__}, labels; PyTorch's default_collate:")
for scores in ([4, 4.5, 4.9], [4.5, 4, 4.9], [4.0, 4.5, 4.9], [True, 4.5, 0.2]):
    found = default_data_collator([{"label": score, "x": score} for score in scores])
    own = default_collate([{"label": score} for score in scores])["label"]
    print(f"  {scores}: {found['labels'].tolist()}, {[round(score, 1) for score in own.tolist()]}")
    cut = isinstance(scores[0], int)
    assert found["labels"].tolist() == ([int(score) for score in scores] if cut else torch.tensor(scores).tolist())
    assert isinstance(scores[0], bool) or torch.equal(own.float(), torch.tensor(scores).float())
    assert torch.equal(found["x"], torch.tensor(scores))
rows = [{"label_ids": row} for row in ([1, 2], [1.5, 2.5])]
by_list = default_data_collator(rows)["labels"].tolist()
print(f"  lists {[row['label_ids'] for row in rows]}: {by_list}")
assert by_list == [[1, 2], [1, 2]]
PYTHON
