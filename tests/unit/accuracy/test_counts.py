"""No count of the memory forecast can be forgotten unseen: without it, forecasts of measured runs leave their bounds,
or drawn executions need other bytes."""

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from accuracy.grid.compare import CELLS, Compared, compared, read_cells
from shardwise.catalog.gpus import parse_hardware
from shardwise.plan.memory.forecast import forecast_memory
from shardwise.plan.search.question import ask, work_on
from shardwise.plan.work.work import Work
from shardwise.spec.plan.forecast import MemoryForecast
from tests.unit.plan.drawn import MOVES, answer, stored

PLAN = "shardwise.plan"
#: A forecast below a measured peak by more than this is a false "fits". Runs whose forecast is lower are left out.
LOWEST = -0.01

#: What is counted -> the function or property of the planner that counts it; measured runs show it.
MEASURED: dict[str, str] = {
    "weights": "work.persistent.Holding.stored",
    "optimizer states": "work.persistent.state_bytes",
    "gradients": "memory.instants.gradient_bytes",
    "gradients on their way through a reduction": "costs.fsdp.reduce_scatter_buffers",
    "logits": "costs.loss.logits",
    "gathered weights": "costs.fsdp.unsharded_weights",
    "ZeRO-1's message of new weights": "costs.zero1.all_gather_buffer",
    "inputs of norms": "work.activations._norm",
    "inputs of matrices": "work.activations._group",
    "attention": "work.activations._attention",
    "attention's output": "work.activations._attention_output",
    "the MLP": "work.activations._mlp",
    "products that selective recompute keeps": "work.activations._products",
    "block inputs": "work.activations.block_input_bytes",
    "gradients inside a block": "work.activations.backward_bytes",
    "weights that PEFT makes anew": "work.activations._remade",
    "what a norm at a block's end works in": "work.activations.norm_backward_bytes",
    "the last matrix's gradient, in the first micro-batch": "work.block_bytes._last_matrix",
    "copies of what experts hand back": "work.activations.routed_bytes",
    "gradients of an MLP's matrices": "memory.backward._trained_of_mlp",
    "an MLP's backward, at the matrix that was first": "work.activations.mlp_begin_bytes",
    "what a backward of inputs leaves for that of weights": "costs.pipeline.left_by_cut_backward",
    "gradients that wait for the casts of a step": "costs.autocast.waiting_for_casts",
    "other micro-batches in flight": "costs.pipeline.of_one_in_flight",
    "unsharded gradients until the last micro-batch": "costs.deferred_reduction.kept_gradients",
    "what a block computed again holds at its last adapter": "work.activations.again_at_adapter_bytes",
}

#: As above, where it is less than measured forecasts may be off, or no such run was measured: drawn executions show
#: it. Temporaries of optimizers, casts for a whole step, rows of padding and DoRA's norms are compared with torch in
#: `tests/unit/plan/test_against_torch.py`.
DRAWN: dict[str, str] = {
    "the buffer of gradients that is summed over replicas": "costs.gradients.all_reduce_buffer",
    "the head's gradient, made in forward": "costs.loss.made_head_gradient",
    "the head's gradient, stored": "costs.loss.head_gradient",
    "the head's gradient, unsharded until its unit is reduced": "costs.loss.unsharded_head_gradient",
    "the embedding's gradient": "memory.instants._backward_of_embedding",
    "the head's copy in the compute type": "costs.autocast._head_cast",
    "casts of weights": "costs.autocast._casts",
    "casts until backward": "costs.autocast.kept_casts",
    "what adapters keep between their halves": "work.activations._rank",
    "what the final norm and the loss keep": "costs.loss.saved_by_head",
    "what heads keep of other micro-batches in flight": "costs.pipeline.of_a_head",
    "the head's input": "costs.loss.head_input",
    "rotary tables and masks": "costs.block.shared",
    "messages between stages": "costs.pipeline.messages",
    "messages that stages keep": "costs.pipeline._kept_messages",
    "dequantised weights": "work.block_bytes._computed_weights",
    "context": "work.margins.context_bytes",
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


@pytest.fixture(scope="module")
def measured() -> list[Case]:
    return list(_measured())


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
    room, module, *names = place.split(".")
    owner: Any = sys.modules[f"{PLAN}.{room}.{module}"]
    if len(names) == 2:
        monkeypatch.setattr(getattr(owner, names[0]), names[1], property(lambda _: 0))
        return
    counts = getattr(owner, names[0])
    for name, used in list(sys.modules.items()):
        if name.startswith(PLAN) and getattr(used, names[0], None) is counts:
            monkeypatch.setattr(used, names[0], lambda *given, **keys: _zero(counts(*given, **keys)))


@pytest.fixture(autouse=True)
def _counted_anew() -> Iterator[None]:
    """Shares are remembered from one forecast to the next."""
    cached = sys.modules[f"{PLAN}.work.persistent"]._share
    cached.cache_clear()
    yield
    cached.cache_clear()


def test_with_all_counts_no_forecast_leaves_its_bounds(measured):
    assert not _leaves(measured)


@pytest.mark.parametrize("count", MEASURED)
def test_without_a_count_a_measured_run_leaves_its_bound(count, measured, monkeypatch):
    _forget(monkeypatch, MEASURED[count])
    assert _leaves(measured)


@pytest.mark.parametrize("count", DRAWN)
def test_without_a_count_a_drawn_execution_needs_other_bytes(count, monkeypatch):
    _forget(monkeypatch, DRAWN[count])
    assert any(abs(answer(drawn).peak / peak - 1) > MOVES for drawn, peak, _, _ in stored())
