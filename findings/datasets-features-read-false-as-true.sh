#!/usr/bin/env bash
# The text "False" is True in a column that datasets is told to be of truth values, and 2.9 is the whole number 2.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0 pyarrow==26.0.1 pandas==3.1.1 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" HF_DATASETS_DISABLE_PROGRESS_BARS=1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
"""datasets 5.2.0: rows that `Dataset.from_list`, `from_generator` or `IterableDataset.from_generator`
takes with stated features go through Python's own bool and int. So every text that is not empty is
True, as "False", "0" and "no", which is what Python's csv module gives; and fractions are cut, where
the same rows without features, cast, are refused. Read by `load_dataset` from a CSV file with the
same features, or cast from a column of text, "False" is False. Nothing is said.
"""

import csv
import pathlib
from importlib.metadata import version

from datasets import Dataset, Features, IterableDataset, Value, load_dataset

pathlib.Path("rows.csv").write_text("correct\nTrue\nFalse\nFalse\n")
truth = Features({"correct": Value("bool")})
with open("rows.csv") as file:
    rows = list(csv.DictReader(file))
found = {
    "load_dataset of the CSV file": load_dataset("csv", data_files="rows.csv", features=truth, split="train")["correct"][:],
    "from_list without features, cast": Dataset.from_list(rows).cast(truth)["correct"][:],
    "from_list": Dataset.from_list(rows, features=truth)["correct"][:],
    "from_generator": Dataset.from_generator(rows.__iter__, features=truth)["correct"][:],
    "a stream": [row["correct"] for row in IterableDataset.from_generator(rows.__iter__, features=truth)],
}
print(f"datasets {version('datasets')}, rows with the texts True, False and False:")
for way, values in found.items():
    print(f"  {way}: {values}")
    assert values == ([True, False, False] if "CSV" in way or "cast" in way else [True] * 3)
whole = Features({"score": Value("int64")})
scores = [{"score": 2.9}, {"score": -0.9}]
cut = Dataset.from_list(scores, features=whole)["score"][:]
print(f"  scores of 2.9 and -0.9 as int64: {cut}")
assert cut == [2, 0]
try:
    Dataset.from_list(scores).cast(whole)
except ValueError as error:
    print(f"  cast: {error}")
else:
    raise AssertionError("the cast cut the scores")
PYTHON
