#!/usr/bin/env bash
# Dataset.map with drop_last_batch gives rows back unmapped where a process has less than a batch.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""datasets 5.2.0: `map(batched=True, drop_last_batch=True)` drops what is left behind whole
batches. Where there is not one whole batch, nothing is dropped and nothing is mapped: the rows come
back as they were, with the columns that were to be removed. With `num_proc` that is asked of each
process's part: all of 2,500 rows in batches of 1,000 over three processes are left unmapped, and
where some parts hold a batch and some do not, rows of both kinds stand in one data set.
"""

import datasets


def mapped(rows, batch, processes):
    """Each row's double in a new column, in place of the old one."""
    settings = {
        "batched": True,
        "batch_size": batch,
        "drop_last_batch": True,
        "num_proc": processes,
        "remove_columns": ["old"],
    }
    return datasets.Dataset.from_dict({"old": list(range(rows))}).map(
        lambda part: {"new": [2 * one for one in part["old"]]}, **settings
    )


datasets.disable_progress_bars()
datasets.disable_caching()
print(f"datasets {datasets.__version__}, rows, batch, processes, rows that are left with their columns:")
expected = {
    (10, 4, None): (8, {"new"}),
    (3, 4, None): (3, {"old"}),
    (2500, 1000, None): (2000, {"new"}),
    (2500, 1000, 2): (2000, {"new"}),
    (2500, 1000, 3): (2500, {"old"}),
    (10, 4, 3): (10, {"old", "new"}),
}
for (rows, batch, processes), (left, columns) in expected.items():
    found = mapped(rows, batch, processes)
    print(f"  {rows}, {batch}, {processes}: {len(found)}, {sorted(found.column_names)}")
    assert len(found) == left and set(found.column_names) == columns
both = mapped(10, 4, 3)
print(f"  the last of them: {both['new'][:]}, {both['old'][:]}")
assert both["new"][:] == [0, 2, 4, 6] + [None] * 6 and both["old"][:] == [None] * 4 + [4, 5, 6, 7, 8, 9]
PYTHON
