"""The loops of `examples/loop`: a few lines from their originals on one GPU, and the same losses over two ranks."""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in _LOSS.findall(done.stdout)]


def write_texts(file: Path, rows: dict[str, Path]) -> None:
    texts = [" ".join(json.loads(line).values()) for line in rows["train"].read_text().splitlines()[:27]]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


@pytest.mark.parametrize("kind", KINDS)
def test_a_parallel_loop_has_the_losses_of_its_original(kind, models, rows, tmp_path) -> None:
    if kind == "fabric" and importlib.util.find_spec("lightning_fabric") is None:
        pytest.skip("lightning-fabric is not installed")
    file = tmp_path / "rows.jsonl"
    write_texts(file, rows)
    one, two = (str(tmp_path / name) for name in ("one", "two"))
    expected = losses_of(str(FOLDER / f"{kind}_single.py"), str(models["tied"]), str(file), one)
    found = losses_of(*TORCHRUN, str(FOLDER / f"{kind}_parallel.py"), str(models["tied"]), str(file), two)
    assert len(expected) == 4
    # Trainer prints four digits.
    assert found == pytest.approx(expected, rel=1e-5)
    assert (Path(two) / "model.safetensors").is_file()


#: The usual way to clip, in the original and over GPUs alike: to far less than the norms of this model.
CLIPPED = {
    "plain": ("clip_grad_norm_(model.parameters(), 1.0)", "clip_grad_norm_(model.parameters(), 0.1)"),
    "fabric": (
        "    optimizer.step()",
        "    fabric.clip_gradients(model, optimizer, max_norm=0.1)\n    optimizer.step()",
    ),
    "trainer": ("    logging_steps=1,", "    logging_steps=1,\n    max_grad_norm=0.1,"),
}
LAYOUTS = {"fsdp": '"fsdp"', "tp": '{"tp": 2}', "pp x fsdp": '{"pp": 2, "dp_shard": 2}'}


def clipped(kind: str, folder: Path, layout: str | None) -> tuple[str, ...]:
    """The command of an example that clips."""
    code = (FOLDER / f"{kind}_{'single' if layout is None else 'parallel'}.py").read_text()
    edits = [CLIPPED[kind]]
    if layout is not None:
        edits.append(('"fsdp"', LAYOUTS[layout]))
    if layout == "tp" and kind == "trainer":
        edits.append(("batch_size=4", "batch_size=8"))
    for old, new in edits:
        assert old in code
        code = code.replace(old, new)
    ranks = 4 if layout == "pp x fsdp" else 2
    file = folder / f"{kind} {layout}.py"
    file.write_text(code.replace("devices=2", f"devices={ranks}"))
    return (str(file),) if layout is None else (*TORCHRUN[:-1], f"--nproc-per-node={ranks}", str(file))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_clips_in_the_usual_way_has_the_losses_of_its_original(kind, models, rows, tmp_path) -> None:
    file = tmp_path / "rows.jsonl"
    write_texts(file, rows)
    given = (str(models["tied"]), str(file))
    expected = losses_of(*clipped(kind, tmp_path, None), *given, str(tmp_path / "one"))
    assert len(expected) == 4
    for layout in LAYOUTS:
        found = losses_of(*clipped(kind, tmp_path, layout), *given, str(tmp_path / layout))
        assert found == pytest.approx(expected, rel=1e-5), layout
