#!/usr/bin/env bash
# datasets and pyarrow drop columns that the first row of a list does not have.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0 pyarrow==26.0.1
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""datasets 5.2.0, pyarrow 26.0.1: `Dataset.from_list`, `Dataset.from_generator` and
`Table.from_pylist` take the columns of the first row. What only later rows have, as the tools of
some chats, is dropped without a word. In the other order the two that take a list put null in, and
the one that takes a generator ends in an error. The same rows in a JSON Lines file, or as structs
in one column, keep all columns in either order.
"""

import json
from importlib.metadata import version

import datasets
import pyarrow

datasets.disable_progress_bars()
rows = [{"prompt": "hi"}, {"prompt": "the weather?", "tools": "weather"}]


def columns(given):
    with open("rows.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in given)
    return {
        "Dataset.from_list": datasets.Dataset.from_list(given).column_names,
        "Table.from_pylist": pyarrow.Table.from_pylist(given).column_names,
        "load_dataset of JSON Lines": datasets.load_dataset("json", data_files="rows.jsonl", split="train").column_names,
        "a column of structs": [field.name for field in pyarrow.array(given).type],
    }


print(f"datasets {version('datasets')}, pyarrow {pyarrow.__version__}, columns of rows where only one has tools:")
late, early = columns(rows), columns(rows[::-1])
made = datasets.Dataset.from_generator(lambda: iter(rows)).column_names
print(f"  Dataset.from_generator: {made} where it is the last")
assert made == ["prompt"]
for name in late:
    print(f"  {name}: {late[name]} where it is the last, {early[name]} where it is the first")
    assert set(early[name]) == {"prompt", "tools"}
    assert (late[name] == ["prompt"]) == ("from_" in name) and "prompt" in late[name]
PYTHON
