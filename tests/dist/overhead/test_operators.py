"""A step runs no more operators, and writes no more bytes, than a plain loop over the same rows.

Without the gradient norm, which on a CPU is taken otherwise than on a GPU (`train/optim.py`).
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import peft
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from shardwise.data.micro_batches import GlobalBatch
from shardwise.spec.layout.axes import Layout
from shardwise.train.build import Build
from shardwise.train.optim import Update
from tests.dist.cells import prepare_cell, run_built, spread


class Counted(TorchDispatchMode):
    """Counts operators other than views, by name, and the bytes of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, int] = {}
        self.bytes: dict[str, int] = {}

    def __torch_dispatch__(self, operator: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = operator(*args, **(kwargs or {}))
        name = operator._schema.name
        if not (operator.is_view or name in ("aten::detach", "aten::_unsafe_view") or name.startswith("profiler")):
            results = [one for one in tree_leaves(made) if isinstance(one, torch.Tensor)]
            self.calls[name] = self.calls.get(name, 0) + 1
            self.bytes[name] = self.bytes.get(name, 0) + sum(one.nbytes for one in results)
        return made


def counted_steps(built: Build) -> tuple[Counted, Counted]:
    """The second step of ours, and of a plain loop."""
    first, second = (batch for batch, _ in zip(built.batches.from_(0), range(2), strict=False))
    return _second(lambda batch: _our_step(built, batch), first, second), _second(_plain_loop(built), first, second)


def _second(step: Callable[[GlobalBatch], None], first: GlobalBatch, second: GlobalBatch) -> Counted:
    step(first)
    with Counted() as counted:
        step(second)
    return counted


def _our_step(built: Build, batch: GlobalBatch) -> None:
    loss = built.step(batch)
    Update(loss=loss, norm=loss, max_norm=0).launch(built.optimizer, built.model.trainable, check=lambda: True)


def _plain_loop(built: Build) -> Callable[[GlobalBatch], None]:
    """Hugging Face's model, PEFT's adapters, autocast around each forward, AdamW."""
    lora, wide = built.job.adapters, built.job.adapters is None
    model: Any = AutoModelForCausalLM.from_pretrained(built.job.model, dtype=torch.float32 if wide else torch.bfloat16)
    if lora is not None:
        model = peft.get_peft_model(model, peft.LoraConfig(r=lora.r, lora_alpha=8, target_modules="all-linear"))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)

    def step(batch: GlobalBatch) -> None:
        for micro in batch.micro_batches:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(input_ids=micro.input_ids, labels=micro.labels, use_cache=False).loss
            (loss / len(batch.micro_batches)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_step_runs_what_a_plain_loop_runs_and_two_percent(method, make_job, tmp_path) -> None:
    """Of rows in which every token is trained."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"text": f"row {number} " + "of text " * 60}) for number in range(16)))
    data = {"path": str(rows), "max_length": 64, "over_long": "truncate"}
    job = make_job("deep untied", method=method, data=data, train={"precision": "mixed", "max_steps": 2})
    run = prepare_cell(job, tmp_path / "run")
    ((ours, plain),) = run_built(counted_steps, run, spread(micros=2, precision="mixed"))
    for what, mine, theirs in (("operators", ours.calls, plain.calls), ("bytes", ours.bytes, plain.bytes)):
        more = {key: (mine.get(key, 0), theirs.get(key, 0)) for key in sorted({*mine, *theirs})}
        print(f"{method}: {sum(mine.values())} {what}, of a plain loop {sum(theirs.values())}")
        assert sum(mine.values()) <= 1.02 * sum(theirs.values()), (what, more)


def gradients_of_a_step(built: Build) -> list[dict[str, torch.Tensor]]:
    """Gradients here where weights are cast once a step, and where they are in each forward."""
    found = []
    batch = next(iter(built.batches.from_(0)))
    assert built.step.keeps_casts
    for step in (built.step, replace(built.step, keeps_casts=False)):
        step(batch)
        found.append({name: p.grad.clone() for name, p in built.model.trained if p.grad is not None})
        built.optimizer.zero_grad()
    return found


@pytest.mark.parametrize("layout", [Layout(dp_replicate=2), Layout(pp=2, schedule="zero_bubble")], ids=str)
def test_casts_that_all_micro_batches_share_change_no_bit(layout, make_job, tmp_path) -> None:
    run = prepare_cell(make_job("deep tied", train={"precision": "mixed", "max_steps": 1}), tmp_path)
    for once, anew in run_built(gradients_of_a_step, run, spread(layout, micros=4, precision="mixed")):
        assert once.keys() == anew.keys() != set()
        assert all(torch.equal(gradient, anew[name]) for name, gradient in once.items())
