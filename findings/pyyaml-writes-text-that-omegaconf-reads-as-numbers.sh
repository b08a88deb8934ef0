#!/usr/bin/env bash
# The commit 12e3 in a config that PyYAML has written is 12000.0 to OmegaConf.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyyaml==6.0.4 omegaconf==2.3.1 ruamel.yaml==0.19.1
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""pyyaml 6.0.4, omegaconf 2.3.1, ruamel.yaml 0.19.1: PyYAML quotes the text that it would itself
take for something else. Numbers with an exponent need a point and a sign there, so that the text
12e3 is written bare, and OmegaConf, which Hydra reads configs with, and ruamel.yaml read a number:
the name of a run or a short commit is another one, or infinite. The other way round, ruamel.yaml
writes a rate of 1e-05 and the text 12:30 bare, which are text and 750 to PyYAML.
"""

import io
from importlib.metadata import version

import yaml
from omegaconf import OmegaConf
from ruamel.yaml import YAML


def by_ruamel(value):
    file = io.StringIO()
    YAML().dump({"value": value}, file)
    return file.getvalue()


print(", ".join(f"{name} {version(name)}" for name in ("pyyaml", "omegaconf", "ruamel.yaml")))
for text, number in (
    ("12e3", 12000.0),
    ("1e-5", 1e-5),
    ("4e400", float("inf")),
    ("1200", "1200"),
    ("1.2e+3", "1.2e+3"),
    ("no", "no"),
):
    written = yaml.safe_dump({"value": text})
    read = (yaml.safe_load(written), OmegaConf.create(written), YAML(typ="safe").load(written))
    own, omega, ruamel = (one["value"] for one in read)
    print(f"  {text!r} as {written.strip()!r}: PyYAML reads {own!r}, OmegaConf {omega!r}, ruamel.yaml {ruamel!r}")
    assert own == text and omega == ruamel == number
for value, other in ((1e-05, "1e-05"), ("12:30", 750), ("no", False), (0.5, 0.5)):
    written = by_ruamel(value)
    own, pyyaml = YAML(typ="safe").load(written)["value"], yaml.safe_load(written)["value"]
    print(f"  {value!r} of ruamel.yaml is written as {written.strip()!r}: ruamel.yaml reads {own!r}, PyYAML {pyyaml!r}")
    assert own == value and pyyaml == other and type(pyyaml) is type(other)
PYTHON
