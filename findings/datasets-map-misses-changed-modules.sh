#!/usr/bin/env bash
# After a change in a module, datasets still gives what the function in it made before.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0 pyarrow==26.0.1 pandas==3.1.1
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" HF_DATASETS_DISABLE_PROGRESS_BARS=1 "$folder/venv/bin/python" - <<'PYTHON'
"""datasets 5.2.0: `map` finds its results again by a hash of the function. Of a function of the script itself the hash follows the
code; of one that is imported it follows the name. So who mends the function in a module of their own, and runs the script
again, trains on rows that the old function made, called as it is or within another function; nothing is said.
"""

import subprocess
import sys
from pathlib import Path

import datasets

Path("rows.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
script = """
import datasets
import prepare

rows = datasets.load_dataset("json", data_files="rows.jsonl", split="train")
CODE
print(rows.map(prepare.row)["y"][:], rows.map(lambda row: prepare.row(row))["y"][:], rows.map(own)["y"][:])
"""


def run(added):
    code = f"def row(row):\n    return {{'y': row['x'] + {added}}}\n"
    Path("prepare.py").write_text(code)
    Path("script.py").write_text(script.replace("CODE", code.replace("def row", "def own")))
    return subprocess.run([sys.executable, "-B", "script.py"], check=True, capture_output=True, text=True).stdout.strip()


print(f"datasets {datasets.__version__}: a function of a module, the same within another, and one of the script, of 1 and 2")
first, second = run(10), run(500)
print(f"  where they add 10: {first}\n  changed to add 500: {second}")
assert first == "[11, 12] [11, 12] [11, 12]" and second == "[11, 12] [11, 12] [501, 502]"
PYTHON
