#!/usr/bin/env bash
# safetensors writes files that only their owner can read, whatever the umask says.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check safetensors==0.8.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""safetensors 0.8.0: `save_file` leaves a file of mode 0600 under a umask of 022, where every file that Python opens has
0644. A model saved on a shared disk, or copied into an image that another user serves, cannot be read there.
"""

import os

import numpy
import safetensors
from safetensors.numpy import save_file

os.umask(0o022)
save_file({"weight": numpy.zeros(3)}, "model.safetensors")
with open("config.json", "w", encoding="utf-8"):
    pass
modes = {name: oct(os.stat(name).st_mode & 0o777) for name in ("model.safetensors", "config.json")}
print(f"safetensors {safetensors.__version__}, umask 022: {modes}")
assert modes == {"model.safetensors": "0o600", "config.json": "0o644"}
PYTHON
