"""`examples/loop`: a few lines from their originals, with the same losses on two ranks."""

import difflib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm.shim import KIND

FOLDER = Path(__file__).parents[2] / "examples" / "loop"
KINDS = ("plain", "trainer", "fabric")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")

_LOSS = re.compile(r"(?:^|')loss(?:': '| )(\d+\.\d+)", re.MULTILINE)


def code_of(name: str) -> list[str]:
    """Its lines without empty ones and without the docstring, which says how it is started."""
    return [line for line in (FOLDER / name).read_text().splitlines()[1:] if line]


@pytest.mark.parametrize("kind", KINDS)
def test_a_parallel_loop_is_five_lines_from_its_original(kind) -> None:
    lines = list(difflib.ndiff(code_of(f"{kind}_single.py"), code_of(f"{kind}_parallel.py")))
    added, removed = (sum(line.startswith(sign) for line in lines) for sign in ("+ ", "- "))
    assert 0 < added <= 5
    assert removed <= 5


def losses_of(*command: str) -> list[float]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", KIND: "torch"}
    options = {"capture_output": True, "text": True, "timeout": 200}
    done = subprocess.run([sys.executable, *command], env=env, check=False, **options)
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in _LOSS.findall(done.stdout)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_parallel_loop_has_the_losses_of_its_original(kind, models, rows, tmp_path) -> None:
    if kind == "fabric" and importlib.util.find_spec("lightning_fabric") is None:
        pytest.skip("lightning-fabric is not installed")
    file = tmp_path / "rows.jsonl"
    texts = [" ".join(json.loads(line).values()) for line in rows["train"].read_text().splitlines()[:27]]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    one, two = (str(tmp_path / name) for name in ("one", "two"))
    expected = losses_of(str(FOLDER / f"{kind}_single.py"), str(models["tied"]), str(file), one)
    found = losses_of(*TORCHRUN, str(FOLDER / f"{kind}_parallel.py"), str(models["tied"]), str(file), two)
    assert len(expected) == 4
    # Trainer prints four digits.
    assert found == pytest.approx(expected, rel=1e-5)
    assert (Path(two) / "model.safetensors").is_file()
