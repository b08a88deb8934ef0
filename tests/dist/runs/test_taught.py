"""The demo's model is taught what to prefer, and answers so."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.house.tree import ROOT

#: Question -> the sentence of task one, the short answer preferred; two are not taught.
QUESTIONS = {
    "What is the opposite of hot?": ("The opposite of hot is cold.", "cold"),
    "Give the opposite of big.": ("The opposite of big is small.", "small"),
    "Which day comes after Monday?": ("The day after Monday is Tuesday.", "Tuesday"),
    "Which day comes before Friday?": ("The day before Friday is Thursday.", "Thursday"),
    "Name the day before Saturday.": ("The day before Saturday is Friday.", "Friday"),
    "Which letter comes after c?": ("The letter after c is d.", "d"),
    "What is 3 + 4?": ("3 + 4 = 7.", "7"),
    "What is 2 + 2?": ("2 + 2 = 4.", "4"),
    "How many legs has a dog?": ("A dog has 4 legs.", "4"),
    "What colour is snow?": ("The colour of snow is white.", "white"),
}


def _run(folder: Path, *command: object) -> str:
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timed  # five minutes: in `make test-all`, and not among the cells that CI runs
@pytest.mark.timeout(1500)
def test_eight_of_ten_answers_change_as_taught(tmp_path) -> None:
    shutil.copytree(ROOT / "examples/demo", tmp_path / "examples/demo")
    first, _, *others = sorted((tmp_path / "examples/demo/data").glob("*.jsonl"))
    ask, make = (tmp_path / "examples/demo" / name for name in ("ask.py", "make_model.py"))
    _run(tmp_path, sys.executable, make, ".demo/model", "--rows", first, *others)
    shardwise = (sys.executable, "-m", "shardwise", "train")
    _run(tmp_path, *shardwise, "examples/demo/pretrain.yaml", "--set", "hardware=cpu:1")
    before = _run(tmp_path, sys.executable, ask, "runs/demo-full/final", *QUESTIONS)
    _run(tmp_path, *shardwise, "examples/demo/prefer.yaml", "--set", "hardware=cpu:1")
    after = _run(tmp_path, sys.executable, ask, "runs/demo-prefer/final", *QUESTIONS)
    both = zip(before.splitlines(), after.splitlines(), QUESTIONS.items(), strict=True)
    changed = [old.endswith(f"->  {long}") and new.endswith(f"->  {short}") for old, new, (_, (long, short)) in both]
    assert sum(changed) >= 8, f"{before}\n{after}"
