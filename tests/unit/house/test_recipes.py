"""CONTRIBUTING.md's recipes: an optimizer plans and steps; kinds of recompute have their files."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from tests.unit.house.tree import ROOT, text_of

#: Lion (Chen et al., 2023): steps by the sign of a momentum.
LION = """
import torch
class Lion(torch.optim.Optimizer):
    def __init__(self, groups, *, lr, betas):
        super().__init__(groups, {"lr": lr, "betas": betas})
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for weight in group["params"]:
                momentum = self.state[weight].setdefault("exp_avg", torch.zeros_like(weight))
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(group["lr"] * momentum.lerp(weight.grad, 1 - first).sign())
                momentum.lerp_(weight.grad, 1 - second)
"""

#: File of the recipe -> what is written behind which words; a new file is written behind none.
STEPS: dict[str, list[tuple[str, str]]] = {
    "spec/layout/optimizers.py": [
        ('"adafactor"', ', "lion"'),
        (
            '    "adamw": OptimizerRule(moments=2, keys=_ADAM),\n',
            '    "lion": OptimizerRule(moments=1, keys=("adam_beta1", "adam_beta2"), counts_steps=False),\n',
        ),
    ],
    "parallel/optimizer/lion.py": [("", LION)],
    "train/optim.py": [
        (
            '    rate: dict[str, Any] = {"lr": train.learning_rate}\n',
            '    if name == "lion":\n'
            "        from shardwise.parallel.optimizer.lion import Lion\n\n"
            "        return Lion(groups, **rate, betas=(train.adam_beta1, train.adam_beta2))\n",
        )
    ],
}

#: Run beside the changed package: plans with two optimizers, and takes a step with the new one.
ASKED = """
import contextlib, io, json, pathlib
import torch
from shardwise.cli.main import main
from shardwise.spec.job.keys import TrainSpec
from shardwise.train.optim import build_optimizer
sizes = {}
for name in ("adamw", "lion"):
    asked = ["model=llama-3.1-8b", "hardware=8x H100-SXM", "layout={dp_shard: 8}", f"train.optimizer={name}"]
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        main(["plan", "--json", *(word for one in asked for word in ("--set", one))])
    plan = json.loads(said.getvalue())
    best = plan["candidates"][0]
    assert best["optimizer"] == name and not best["not_trained"], best["not_trained"]
    sizes[name] = max(rank["parts"]["optimizer"] for rank in best["memory"]["ranks"])
    sizes[f"{name} on disk"] = plan["disk"]["checkpoint_bytes"]
weight = torch.nn.Parameter(torch.ones(2, 2))
weight.grad = torch.full((2, 2), -3.0)
optimizer = build_optimizer([("weight", weight)], train=TrainSpec(optimizer="lion", learning_rate=0.5), name="lion")
optimizer.step()
pathlib.Path("found.json").write_text(json.dumps({**sizes, "weight": weight.tolist()}))
"""


@pytest.mark.slow
def test_an_optimizer_is_added_by_the_files_of_its_recipe_alone(tmp_path) -> None:
    recipes = text_of("CONTRIBUTING.md").replace("NAME", "lion").split("### Add ")[1:]
    named, kind = (re.findall(r"^\d\. `src/shardwise/([\w/.]+)`", one, re.MULTILINE) for one in recipes)
    assert set(STEPS) <= set(named) and len(named) <= 6
    assert len(kind) <= 6 and all("selective" in text_of(f"src/shardwise/{file}") for file in kind)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name, changes in STEPS.items():
        file = tmp_path / "src/shardwise" / name
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        for behind, new in changes:
            assert behind in text, f"{name} has no {behind}"
            text = text.replace(behind, behind + new, 1)
        file.write_text(text, encoding="utf-8")
    environment = {"PYTHONPATH": str(tmp_path / "src"), "SHARDWISE_CACHE": str(tmp_path), "PATH": ""}
    subprocess.run([sys.executable, "-c", ASKED], cwd=tmp_path, check=True, env=environment, timeout=120)
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert abs(found["lion"] / found["adamw"] - 0.5) < 0.001, "one moment in place of two"
    assert found["lion on disk"] < 0.7 * found["adamw on disk"]
    assert found["weight"] == [[1.5, 1.5], [1.5, 1.5]]
