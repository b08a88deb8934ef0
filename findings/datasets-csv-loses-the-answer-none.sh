#!/usr/bin/env bash
# The answers None, NA and null are gone from a CSV file that datasets has written and reads.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""datasets 5.2.0 writes texts into CSV as they are and reads them as pandas does: None, null, NA, N/A, n/a, nan and NULL come back as no
text at all, as empty ones do, and a column of numbers in text as numbers, without their zeros. So a question whose answer is "None" has
none, with "None" beside "none" one of two is left, and nothing is said. `keep_default_na=False` keeps the texts; JSON and Parquet do too.
"""

from importlib.metadata import version

import datasets

datasets.disable_progress_bars()
answers = ["yes", "none", "None", "null", "NULL", "NA", "N/A", "n/a", "nan", "No", "-"]
codes = [f"0{number}" for number in range(len(answers))]
made = datasets.Dataset.from_dict({"answer": answers, "code": codes})
made.to_csv("rows.csv")
made.to_json("rows.json")
made.to_parquet("rows.parquet")


def read(kind, **settings):
    rows = datasets.load_dataset(kind, data_files=f"rows.{kind}", split="train", **settings)
    return rows["answer"][:], rows["code"][:]


found = {"CSV": read("csv"), "CSV, keep_default_na=False": read("csv", keep_default_na=False), "JSON": read("json"), "Parquet": read("parquet")}
print(f"datasets {version('datasets')} with pandas {version('pandas')}, {answers}:")
for name, (texts, numbers) in found.items():
    print(f"  {name}: {texts}; {codes[:2]} are {numbers[:2]}")
    assert (texts == answers) == (name != "CSV")
    assert numbers == (list(range(len(codes))) if "CSV" in name else codes)
assert [text for text in found["CSV"][0] if text] == ["yes", "none", "No", "-"]
PYTHON
