#!/usr/bin/env bash
# datasets writes JSON numbers with ten decimals: small ones become 0.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""datasets 5.2.0: `Dataset.to_json` writes numbers with ten places behind the point, which is what
pandas does unless told otherwise. Probabilities below 5e-11 become 0, 1e-5 / 3 keeps five digits,
and NaN and infinity become null. CSV and Parquet keep all of the first. Other numbers come back from a
file that a data set was saved to, and nothing is said. `double_precision=15` keeps more of them.
"""

import logging
import math
from importlib.metadata import version

import datasets

datasets.disable_progress_bars()
values = [0.12345678901234567, 1e-5 / 3, 1.5e-11, -4e-12, math.inf]
made = datasets.Dataset.from_dict({"value": values})


def back(kind, **settings):
    getattr(made, f"to_{kind}")(f"rows.{kind}", **settings)
    return datasets.load_dataset(kind, data_files=f"rows.{kind}", split="train")["value"][:]


print(f"datasets {version('datasets')} with pandas {version('pandas')}, values written and read:")
found = {"json": back("json"), "csv": back("csv"), "parquet": back("parquet")}
for name, got in {"given": values, **found}.items():
    print(f"  {name}: {got}")
assert found["csv"] == found["parquet"] == values
assert found["json"] == [0.123456789, 3.3333e-06, 0, 0, None]
PYTHON
