#!/usr/bin/env bash
# packing=no on Hydra's command line is a text, which Python takes for yes; in the file it is no.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check hydra-core==1.3.8 omegaconf==2.3.1
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""hydra 1.3.8 reads its files with OmegaConf 2.3.1, as YAML 1.1, and its command line by a grammar of its own. What is a switch in the
file, `no` and `off`, is a text behind `packing=` on the command line, and `if config.packing` then goes the other way; 1:30:00 is 5400
seconds or a text, 007 is 7 or "007", and `inf` the other way round. OmegaConf's own `from_dotlist` reads as the file does.
"""

from importlib.metadata import version
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

here = Path.cwd() / "configs"
here.mkdir()
cases = {"no": False, "off": False, "on": True, "1:30:00": 5400, "007": 7, "0x10": 16, "inf": "inf", "false": False, "1e-5": 1e-5, "1_000": 1000}
print(f"hydra {version('hydra-core')}, OmegaConf {version('omegaconf')}, in the file; behind packing=:")
for text, in_file in cases.items():
    (here / "job.yaml").write_text(f"packing: {text}\n")
    with initialize_config_dir(str(here), version_base="1.3"):
        read = compose("job").packing
        told = compose("job", overrides=[f"packing={text}"]).packing
    print(f"  {text}: {read!r}; {told!r}")
    alike = text in ("false", "1e-5", "1_000")
    assert read == in_file and type(read) is type(in_file) and OmegaConf.from_dotlist([f"packing={text}"]).packing == read
    assert (told == read) == alike and (alike or told == (float("inf") if text == "inf" else text))
PYTHON
