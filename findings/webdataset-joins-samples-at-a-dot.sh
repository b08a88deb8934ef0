#!/usr/bin/env bash
# webdataset makes one sample of all whose keys are alike up to the first dot.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check webdataset==1.0.2 numpy==2.4.6 braceexpand==0.1.7 pyyaml
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""webdataset 1.0.2: `TarWriter` takes any `__key__`, and `WebDataset` reads as the key what stands
before the first dot of the name, and the rest as the field. Keys with a dot in them, as of versions,
times or file names, are one sample when read: of four rows one is left, with fields "0.txt" to
"3.txt" and no "txt". With a dash there are four. Neither the writer nor the reader says anything.
"""

from importlib.metadata import version

import webdataset


def read(joint):
    """The samples of a file of four, whose keys end in a number behind a joint."""
    with webdataset.TarWriter("rows.tar") as writer:
        for number in range(4):
            writer.write({"__key__": f"page{joint}{number}", "txt": f"text {number}"})
    rows = webdataset.WebDataset("rows.tar", shardshuffle=False)
    return [{name: value for name, value in row.items() if name in ("__key__",) or name.endswith("txt")} for row in rows]


print(f"webdataset {version('webdataset')}, four samples written and read:")
dash, dot = read("-"), read(".")
print(f"  keys page-0 to page-3: {len(dash)}, {dash[0]}")
print(f"  keys page.0 to page.3: {len(dot)}, {dot[0]}")
assert [row["txt"] for row in dash] == [f"text {number}".encode() for number in range(4)]
assert len(dot) == 1 and dot[0]["__key__"] == "page" and "txt" not in dot[0] and len(dot[0]) == 5
PYTHON
