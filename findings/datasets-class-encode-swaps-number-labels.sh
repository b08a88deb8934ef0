#!/usr/bin/env bash
# class_encode_column of datasets turns the label 10 into 2, and 2 into 3.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""datasets 5.2.0: `class_encode_column` orders the values of a column as text, also where they are
numbers, and stores each one's place. Labels from 0 to 9 stay as they are; with a tenth, 10 comes
behind 1, and all from 2 on are moved: of 21 labels only 0 and 1 mean the same as before. A model
trained on the one and measured by the other is wrong in nearly all, and both columns are whole
numbers of the same range. The names still tell, where they are asked.
"""

import datasets


def encoded(labels):
    """The stored numbers, and what their names say."""
    rows = datasets.Dataset.from_dict({"label": labels}).class_encode_column("label")
    stored = list(rows["label"])
    return stored, [int(name) for name in rows.features["label"].int2str(stored)]


datasets.disable_progress_bars()
print(f"datasets {datasets.__version__}, labels before and after class_encode_column:")
for count in (10, 11, 21):
    labels = list(range(count))
    stored, named = encoded(labels)
    print(f"  {labels}:\n    {stored}")
    assert named == labels and sorted(stored) == labels
    assert [old for old, new in zip(labels, stored) if old == new] == (labels if count == 10 else [0, 1])
assert encoded([2, 10])[0] == [1, 0]
PYTHON
