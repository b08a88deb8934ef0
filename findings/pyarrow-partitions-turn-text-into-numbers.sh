#!/usr/bin/env bash
# A text column by which a Parquet data set is partitioned comes back as numbers: 007 is 7.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pandas==3.1.1 pyarrow==26.0.1 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""pyarrow 26.0.1, pandas 3.1.1: a data set that is written by the values of a text column is read
with those values as whole numbers, where all of them look like ones. Leading zeros are gone, and so
"7" and "007" are one value, which pandas cannot read at all. A single value that is no number, or
is above 2,147,483,647, leaves all of them text. The files do not hold the column, only the names of
folders do, and nothing is said.
"""

import pandas
import pyarrow.dataset


def read(values):
    """The values of a column by which a data set is partitioned, in the order of the rows."""
    rows = pandas.DataFrame({"code": values, "row": range(len(values))})
    folder = "_".join(values)
    rows.to_parquet(folder, partition_cols=["code"])
    try:
        back = pandas.read_parquet(folder).sort_values("row")["code"].tolist()
    except ValueError as error:
        back = f"{error}"
    table = pyarrow.dataset.dataset(folder, partitioning="hive").to_table().sort_by("row")
    return back, table["code"].to_pylist()


print(f"pandas {pandas.__version__}, pyarrow {pyarrow.__version__}, codes as written, as each reads them:")
expected = {
    ("007", "08"): [7, 8],
    ("007", "08", "x"): ["007", "08", "x"],
    ("007", "3000000000"): ["007", "3000000000"],
    ("007", "7"): [7, 7],
}
for values, wanted in expected.items():
    back, table = read(list(values))
    print(f"  {list(values)}: {back}; {table}")
    assert table == wanted and (back == wanted or back == "Categorical categories must be unique")
    assert (back == wanted) == (values != ("007", "7"))
PYTHON
