#!/usr/bin/env bash
# simple-parsing reads target_modules: q_proj from a file as six modules, q, _, p, r, o and j.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check simple-parsing==0.1.9 pyyaml==6.0.4
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""simple-parsing 0.1.9: where a field is a list of texts, and a YAML or JSON file has one text, `Serializable` takes its letters for the list; on the
command line the same text is a list of one. Of an `int | str`, "007" in a file is 7. Nothing is said, where a fraction that is cut for an `int` is warned of.
"""

import warnings
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Union

import simple_parsing
from simple_parsing.helpers import Serializable


@dataclass
class Settings(Serializable):
    target_modules: list[str] = field(default_factory=list)
    version: Union[int, str] = 0
    steps: int = 0


def read(text, reader):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return reader(text), len(caught)


print(f"simple-parsing {version('simple-parsing')}:")
for text, reader, name, wanted, warns in (
    ("target_modules: q_proj", Settings.loads_yaml, "target_modules", ["q", "_", "p", "r", "o", "j"], 0),
    ('{"target_modules": "q_proj"}', Settings.loads_json, "target_modules", ["q", "_", "p", "r", "o", "j"], 0),
    ("target_modules: [q_proj]", Settings.loads_yaml, "target_modules", ["q_proj"], 0),
    ("version: '007'", Settings.loads_yaml, "version", 7, 0),
    ("steps: 1.7", Settings.loads_yaml, "steps", 1, 1),
):
    found, warned = read(text, reader)
    print(f"  {text}: {getattr(found, name)!r}, {warned} warnings")
    assert getattr(found, name) == wanted and warned == warns
told = simple_parsing.parse(Settings, args=["--target_modules", "q_proj"])
print(f"  --target_modules q_proj: {told.target_modules}")
assert told.target_modules == ["q_proj"]
PYTHON
