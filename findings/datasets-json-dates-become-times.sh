#!/usr/bin/env bash
# A column of answers that are dates comes out of datasets as times, and written again as milliseconds.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0 pyarrow==26.0.1 pandas==3.1.1
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""datasets 5.2.0 reading JSON Lines: where all strings of a column look like ISO dates, as the answers of a task "which
day is meant?" do, the column is one of timestamps. The answer "2024-05-01" is a datetime, whose text is
"2024-05-01 00:00:00"; `to_json` writes 1714521600000. One row with another text in it, and all stay strings. pandas
3.1.1 keeps them strings.
"""

import json
from pathlib import Path

import datasets
import pandas

ROWS = [{"prompt": f"question {day}", "completion": f"2024-05-{day:02d}"} for day in range(1, 21)]


def read(rows: list[dict[str, str]], name: str) -> datasets.Dataset:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return datasets.load_dataset("json", data_files=name, split="train")


dates = read(ROWS, "dates.jsonl")
dates.to_json("again.jsonl")
again = json.loads(Path("again.jsonl").read_text().splitlines()[0])["completion"]
print(f"datasets {datasets.__version__}: 2024-05-01 is read as {dates[0]['completion']!s}, and written as {again!r}")
assert str(dates[0]["completion"]) == "2024-05-01 00:00:00" and again == 1714521600000
mixed = read([*ROWS, {"prompt": "question", "completion": "no day"}], "mixed.jsonl")
assert mixed[0]["completion"] == "2024-05-01"
assert pandas.read_json("dates.jsonl", lines=True)["completion"][0] == "2024-05-01"
PYTHON
