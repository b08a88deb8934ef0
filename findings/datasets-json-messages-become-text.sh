#!/usr/bin/env bash
# datasets reads messages with unlike keys as JSON, which Parquet then holds as text.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0 pyarrow==26.0.1
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" HF_DATASETS_DISABLE_PROGRESS_BARS=1 "$folder/venv/bin/python" - <<'PYTHON'
"""datasets 5.2.0: chats of messages with and without tool calls, whose arguments differ, have one type through `load_dataset("json")`, and
another through `Dataset.from_list`, from the same rows:

- load_dataset: the column is `List(Json)`; rows come back as they were, but `to_parquet` writes each message as JSON
  text, so that other readers of the Parquet file find text where they expect an object with a role;
- from_list: the column is a struct of all keys, and each row has the other row's arguments as None.
"""

import json

import datasets
import pyarrow.parquet

rows = [
    {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": held}}]},
        ]
    }
    for held in ({"city": "Paris"}, {"n": 3})
]
with open("rows.jsonl", "w", encoding="utf-8") as file:
    file.writelines(json.dumps(row) + "\n" for row in rows)

loaded = datasets.load_dataset("json", data_files="rows.jsonl", split="train")
loaded.to_parquet("rows.parquet")
written = pyarrow.parquet.read_table("rows.parquet")["messages"][0].as_py()
print(f"datasets {datasets.__version__}, load_dataset: {loaded.features['messages']}")
print(f"  first row: {loaded[0]['messages']}")
print(f"  in Parquet: {written}")
assert loaded[0] == rows[0]
assert isinstance(written[0], str) and json.loads(written[0]) == rows[0]["messages"][0]

listed = datasets.Dataset.from_list(rows)[0]["messages"][1]["tool_calls"][0]["function"]["arguments"]
print(f"from_list, arguments of the first row: {listed}")
assert listed == {"city": "Paris", "n": None}
PYTHON
