"""`examples/loop`: a few lines from their originals, with the same losses on two ranks."""

import difflib
import importlib.util
import json
import re
from pathlib import Path

import pytest

from tests.dist.programs import TORCHRUN, printed

FOLDER = Path(__file__).parents[3] / "examples" / "loop"
KINDS = ("plain", "trainer", "fabric")
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_parallel_loop_has_the_losses_of_its_original(kind, models, rows, tmp_path) -> None:
    if kind == "fabric" and importlib.util.find_spec("lightning_fabric") is None:
        pytest.skip("lightning-fabric is not installed")
    file = tmp_path / "rows.jsonl"
    texts = [" ".join(json.loads(line).values()) for line in rows["train"].read_text().splitlines()[:27]]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    one, two = tmp_path / "one", tmp_path / "two"
    alone = printed(FOLDER / f"{kind}_single.py", models["tied"], file, one)
    spread = printed(*TORCHRUN, FOLDER / f"{kind}_parallel.py", models["tied"], file, two)
    expected, found = ([float(loss) for loss in _LOSS.findall(said)] for said in (alone, spread))
    assert len(expected) == 4
    # Trainer prints four digits.
    assert found == pytest.approx(expected, rel=1e-5)
    assert (two / "model.safetensors").is_file()
