"""QLoRA with experts in 4 bits trains as one process does; others load it as documented."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.train.build import Build
from shardwise.train.saving.card import EXPERTS_LOADER
from tests.dist.cells import prepare_cell, run_built, spread
from tests.dist.memory.test_memory import must_be_forecast
from tests.dist.models.test_experts import CELLS, DEALT
from tests.dist.saved.test_final import adapted, finish, loss_of

pytest.importorskip("bitsandbytes", reason="the optional extra `qlora` is not installed")

WIDE = "wide qwen3_moe"
#: Adapters on experts too, as all-linear makes them, or on attention alone.
TARGETS: dict[str, dict[str, Any]] = {
    "attention": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "o_proj"]},
    "experts": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"},
}
SPREAD: dict[str, Execution] = {
    **{name: CELLS[name] for name in CELLS if name not in ("interleaved(2)", "gpipe(2)")},
    "fsdp(3), uneven": spread(Layout(dp_shard=3)),
    "tp(2)": spread(Layout(tp=2)),
    "fsdp(2) x tp(2), recompute": spread(Layout(dp_shard=2, tp=2), gradient_checkpointing="full"),
    "fsdp(2), offloaded": spread(Layout(dp_shard=2), gradient_checkpointing="offloaded"),
}


@pytest.mark.slow
@pytest.mark.parametrize("cell", SPREAD)
@pytest.mark.parametrize("targets", TARGETS)
def test_it_trains_as_one_process_does(targets, cell, must_train_alike) -> None:
    must_train_alike(SPREAD[cell], WIDE, method="qlora", lora=TARGETS[targets])


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["fsdp(2) x ep(2)", "ddp(2) x ep(2), recompute", "fsdp(4) x ep(2)"])
@pytest.mark.parametrize("targets", TARGETS)
def test_experts_that_are_dealt_among_ranks_are_quantised_there(targets, cell, must_train_alike) -> None:
    must_train_alike(DEALT[cell], WIDE, method="qlora", lora=TARGETS[targets])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")  # as PEFT made them
@pytest.mark.parametrize("targets", TARGETS)
def test_one_process_has_the_losses_of_transformers_with_the_documented_loader(targets, make_job, tmp_path) -> None:
    job = make_job(WIDE, method="qlora", lora=TARGETS[targets], train={"max_steps": 3, "learning_rate": 0.01})
    final, _, loss = finish(job, tmp_path, CELLS["fsdp(2)"])
    assert json.loads((final / "quantization_config.json").read_text())["quantize_experts"]
    model = adapted(Path(job.model), final)
    wide = loss_of(model, final)
    assert abs(loss - wide) > 5e-6 * abs(wide), "experts were in 4 bits before"
    names: dict[str, Any] = {}
    exec(_documented(), names)
    names["put_experts_in_4_bits"](model)
    assert max(p.ndim for p in model.parameters()) == 2
    assert loss_of(model, final) == pytest.approx(loss, rel=1e-6)


def _documented() -> str:
    page = (Path(__file__).parents[3] / "docs/howto/adapter.md").read_text()
    return next(code for code in re.findall(r"```python\n(.*?)```", page, re.S) if "def put_experts" in code)


def test_the_documented_loader_is_that_of_the_card_and_is_short(make_job, tmp_path) -> None:
    assert EXPERTS_LOADER in _documented()
    assert len([line for line in _documented().splitlines() if line]) <= 15
    job = make_job(WIDE, method="qlora", lora=TARGETS["attention"], train={"max_steps": 1})
    final, *_ = finish(job, tmp_path, spread())
    code = re.search(r"```python\n(.*?)```", (final / "README.md").read_text(), re.S)
    assert code is not None
    compile(code.group(1), "README.md", "exec")
    assert EXPERTS_LOADER in code.group(1)
    assert code.group(1).rstrip().endswith(")")


@pytest.mark.parametrize("cell", ["single", "fsdp(3), uneven", "tp(2)", "fsdp(4) x ep(2)"])
def test_ranks_hold_of_quantised_experts_what_is_forecast(cell, make_job, tmp_path) -> None:
    chosen = (SPREAD | DEALT | {"single": spread()})[cell]
    job = make_job(WIDE, method="qlora", lora=TARGETS["attention"], train={"max_steps": 1})
    must_be_forecast(job, replace(chosen, optimizer="adamw"), tmp_path)


def _kept_stacks(built: Build) -> int:
    """How many written-out stacks autograd keeps of one forward."""
    shapes = {(4, 48, 128), (4, 128, 24)}
    shapes |= {(experts, columns, rows) for experts, rows, columns in shapes}
    seen: list[tuple[int, ...]] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(tensor.shape))
        return tensor

    (micro,) = next(iter(built.batches.from_(0))).micro_batches
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        cast(Any, built.model.result.model)(input_ids=micro.input_ids).logits.sum().backward()
    return sum(shape in shapes for shape in seen)


@pytest.mark.parametrize(("quantised", "kept"), [(False, 4), (True, 0)])
def test_autograd_keeps_bytes_of_experts_and_not_what_is_written_out(quantised, kept, make_job, tmp_path) -> None:
    train = {"max_steps": 1, "quantize_experts": quantised}
    job = make_job(WIDE, method="qlora", lora=TARGETS["attention"], train=train)
    assert run_built(_kept_stacks, prepare_cell(job, tmp_path), spread()) == [kept]
