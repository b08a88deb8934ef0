#!/usr/bin/env bash
# mlx-lm rotates a Llama that transformers 5 saved by another base than it was trained with.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 mlx-lm==0.32.2 mlx==0.32.4 mlx-cpu==0.32.4
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""transformers 5.23.0 writes the base of the rotary embedding into `rope_parameters` and no `rope_theta` beside it.
mlx-lm 0.32.2 reads `rope_theta` alone for Llama: it takes 10,000 where Llama 3 has 500,000, and says nothing; every
token comes from another model. Its Qwen3 looks into `rope_parameters`.
"""

import importlib
import json
from importlib.metadata import version
from pathlib import Path

from transformers import AutoConfig

bases = {}
for family in ("llama", "qwen3"):
    AutoConfig.for_model(family, rope_theta=500_000.0).save_pretrained(family)
    saved = json.loads(Path(family, "config.json").read_text())
    assert "rope_theta" not in saved and saved["rope_parameters"]["rope_theta"] == 500_000.0
    bases[family] = importlib.import_module(f"mlx_lm.models.{family}").ModelArgs.from_dict(saved).rope_theta
print(f"mlx-lm {version('mlx-lm')}, saved with 500,000, read: {bases}")
assert bases == {"llama": 10_000, "qwen3": 500_000.0}
PYTHON
