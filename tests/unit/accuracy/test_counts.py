"""No count of the memory forecast can be forgotten unseen: without it, forecasts of measured runs leave their bounds,
or golden plans need other bytes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from accuracy.grid.compare import CELLS, Compared, compared, read_cells
from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import find_model
from shardwise.plan.memory.forecast import forecast_memory
from shardwise.plan.memory.work import Work
from shardwise.plan.search.question import ask, work_on
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.file import job_from_data
from shardwise.spec.plan.forecast import MemoryForecast, Plan
from tests.unit.house.tree import ROOT

MEMORY = "shardwise.plan.memory"
#: A forecast below a measured peak by more than this is a false "fits". Runs whose forecast is lower are left out.
LOWEST = -0.01

#: What is counted -> the function or property of `plan.memory` that counts it; measured runs show it.
MEASURED: dict[str, str] = {
    "weights": "persistent.Holding.stored",
    "optimizer states": "persistent.state_bytes",
    "gradients": "instants.gradient_bytes",
    "gradients on their way through a reduction": "buffers.in_reduction",
    "logits": "buffers.logits",
    "gathered weights": "buffers.gathered",
    "copies that gloo makes": "buffers._copied",
    "ZeRO-1's message of new weights": "buffers.exchanged_rows",
    "inputs of norms": "activations._norm",
    "inputs of matrices": "activations._group",
    "attention": "activations._attention",
    "attention's output": "activations._attention_output",
    "the MLP": "activations._mlp",
    "products that selective recompute keeps": "activations._products",
    "block inputs": "activations.block_input_bytes",
    "gradients inside a block": "activations.backward_bytes",
    "weights that PEFT makes anew": "activations._remade",
    "what a norm at a block's end works in": "activations.norm_backward_bytes",
    "the buffer of gradients that is summed over replicas": "buffers.flat_gradients",
    "the last matrix's gradient, in the first micro-batch": "work.Work.last_matrix",
    "copies of what experts hand back": "activations.routed_bytes",
    "the head as it arrives": "buffers.arriving_head",
    "gradients of an MLP's matrices": "backward._trained_of_mlp",
    "an MLP's backward, at the matrix that was first": "activations.mlp_begin_bytes",
    "messages that gloo keeps": "saved._under_way",
    "messages that gloo keeps of interleaved stages": "saved._sent",
    "what a backward of inputs leaves for that of weights": "saved.left_by_cut_backward",
    "gradients that wait for the casts of a step": "buffers.waiting_for_casts",
    "what a rank's later stage keeps more": "saved.of_a_later_stage",
    "other micro-batches in flight": "saved.of_a_pair",
    "whole gradients until the last micro-batch": "reduced_once.kept_gradients",
    "what a block computed again holds at its last adapter": "activations.again_at_adapter_bytes",
}

#: As above, where it is less than what measured forecasts may be off, or no such run was measured: golden plans show
#: it. Temporaries of optimizers, casts for a whole step, rows of padding and DoRA's norms are compared with torch in
#: `tests/unit/plan/test_against_torch.py`.
GOLDEN: dict[str, str] = {
    "the head's gradient, made in forward": "buffers.made_head_gradient",
    "the head's gradient as it is reduced": "buffers.leaving_head",
    "the head's gradient, stored": "buffers.head_gradient",
    "the head's gradient, whole until its unit is reduced": "buffers.whole_head_gradient",
    "a weight's gradient before it is added": "buffers.fresh_gradient",
    "the embedding's gradient": "instants._backward_of_embedding",
    "the head's copy in the compute type": "buffers._head_cast",
    "casts of weights": "buffers._casts",
    "casts until backward": "buffers.kept_casts",
    "what adapters keep between their halves": "activations._rank",
    "what the first block need not keep": "activations.unsaved_by_first_block",
    "what the final norm and the loss keep": "saved._saved_by_head",
    "what heads keep of other micro-batches in flight": "saved.of_a_head",
    "the head's input": "saved.head_input",
    "rotary tables and masks": "saved.shared",
    "messages between stages": "saved._messages",
    "messages that stages keep": "saved._kept_messages",
    "inputs": "saved.inputs",
    "dequantised weights": "work.Work.computed_weights",
    "context": "margins.context_bytes",
    "workspaces": "margins.workspace_bytes",
}


class Case(NamedTuple):
    """A forecast to make again. `left`: whether it is out of its bounds."""

    work: Callable[[], Work]
    left: Callable[[MemoryForecast], bool]


def _measured() -> Iterator[Case]:
    for cell, ranks in read_cells(CELLS):
        for one in compared(cell, ranks):
            if one.measured.seen_whole and one.error >= LOWEST and not cell.held_out:
                yield _of_a_run(one)


def _of_a_run(one: Compared) -> Case:
    seen = one.measured
    cluster = parse_hardware(f"cpu:{one.cell.processes}")
    question = ask(one.job, model=one.model, cluster=cluster, lengths=seen.lengths)

    def left(forecast: MemoryForecast) -> bool:
        mine = next(alike for alike in forecast.ranks if seen.rank in alike.ranks)
        exact = (mine.parts["weights"], mine.parts["optimizer"]) == (seen.weights, seen.optimizer)
        return not exact or (mine.peak_bytes - mine.parts["context"]) / seen.peak - 1 < LOWEST

    return Case(lambda: work_on(question, cluster, one.execution), left)


def _golden() -> Iterator[Case]:
    for file in sorted((ROOT / "tests/golden").glob("*.json")):
        plan = Plan.from_json(json.loads(file.read_text()))
        job, cluster = job_from_data(plan.job), Cluster.from_json(plan.hardware)
        question = ask(job, model=find_model(job.model, offline=True), cluster=cluster)
        for one in plan.candidates:
            yield Case(
                lambda question=question, cluster=cluster, one=one: work_on(question, cluster, one.execution),
                lambda forecast, one=one: forecast.peak_bytes != one.memory.peak_bytes,
            )


@pytest.fixture(scope="module")
def measured() -> list[Case]:
    return list(_measured())


@pytest.fixture(scope="module")
def golden() -> list[Case]:
    return list(_golden())


def _leaves(cases: list[Case]) -> bool:
    return any(case.left(forecast_memory(case.work())) for case in cases)


def _zero(found: Any) -> Any:
    if isinstance(found, dict):
        return dict.fromkeys(found, 0)
    if isinstance(found, list):
        return []
    return tuple(0 for _ in found) if isinstance(found, tuple) else 0


def _forget(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """From now on what is counted there is 0."""
    module, *names = place.split(".")
    owner: Any = sys.modules[f"{MEMORY}.{module}"]
    if len(names) == 2:
        monkeypatch.setattr(getattr(owner, names[0]), names[1], property(lambda _: 0))
        return
    counts = getattr(owner, names[0])
    for name, used in list(sys.modules.items()):
        if name.startswith(MEMORY) and getattr(used, names[0], None) is counts:
            monkeypatch.setattr(used, names[0], lambda *given, **keys: _zero(counts(*given, **keys)))


@pytest.fixture(autouse=True)
def _counted_anew() -> Iterator[None]:
    """Shares are remembered from one forecast to the next."""
    cached = sys.modules[f"{MEMORY}.persistent"]._share
    cached.cache_clear()
    yield
    cached.cache_clear()


def test_with_all_counts_no_forecast_leaves_its_bounds(measured, golden):
    assert not _leaves(measured)
    assert not _leaves(golden)


@pytest.mark.parametrize("count", MEASURED)
def test_without_a_count_a_measured_run_leaves_its_bound(count, measured, monkeypatch):
    _forget(monkeypatch, MEASURED[count])
    assert _leaves(measured)


@pytest.mark.parametrize("count", GOLDEN)
def test_without_a_count_a_golden_plan_is_another(count, golden, monkeypatch):
    _forget(monkeypatch, GOLDEN[count])
    assert _leaves(golden)
