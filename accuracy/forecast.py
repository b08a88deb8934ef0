"""The planner's answer about a case: bytes by kind of figure, and tokens per second; no search, one execution."""

from __future__ import annotations

from dataclasses import dataclass, replace

from accuracy.cases import Case, LeftOutError
from accuracy.rows import ACTIVE, ALLOCATED, DEVICE, RESERVED, UNSTATED
from accuracy.stacks import stack_of
from shardwise.errors import ShardwiseError
from shardwise.plan.memory.forecast import forecast_memory
from shardwise.plan.memory.stack import peak_of_stack
from shardwise.plan.time.pieces import Pieces, pieces_of, ran_by
from shardwise.plan.time.step import forecast_time
from shardwise.plan.work.inventory import take_inventory
from shardwise.plan.work.work import Work, work_of
from shardwise.spec.layout.execution import Execution


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the planner says of one case.

    Attributes:
        memory: bytes per GPU by kind of figure, as the row's stack would need them.
        plain_memory: as our trainer would.
        parts: bytes by part at the peak.
        instant: when that is.
        filled: the upper end of the interval as the row's stack would need it, over the GPU's memory.
        fits: the upper end of the interval, as the row's stack would need it, is below the GPU's memory.
        plain_fits: that of our trainer is, which is what `plan` says.
    """

    memory: dict[str, float]
    plain_memory: dict[str, float]
    parts: dict[str, int]
    instant: str
    filled: float
    fits: bool
    plain_fits: bool
    tokens_per_second: float


def answer(case: Case) -> Answer:
    """The forecast of a case.

    Raises:
        LeftOutError: the planner refuses what the row ran.
    """
    try:
        work = _work(case, case.execution)
        memory = forecast_memory(work)
        seconds = forecast_time(work, pieces=_pieces(work, case))
    except ShardwiseError as error:
        raise LeftOutError(f"refused: {str(error).partition(';')[0]}") from None
    worst = max(memory.ranks, key=lambda rank: rank.peak_bytes)
    context = worst.parts["context"]
    instant, allocated = peak_of_stack(_work(case, _as_held(case)), case.difference)
    plain, plain_reserved = memory.peak_bytes - context, memory.peak_reserved_bytes - context
    # What the allocator holds above what it has given out grows with that.
    reserved = allocated * plain_reserved / plain
    filled = (memory.peak_high_bytes + reserved - plain_reserved) / memory.capacity_bytes
    return Answer(
        memory=_by_kind(allocated=allocated, reserved=reserved, context=context),
        plain_memory=_by_kind(allocated=plain, reserved=plain_reserved, context=context),
        parts=worst.parts,
        instant=instant,
        filled=filled,
        fits=filled <= 1,
        plain_fits=memory.peak_high_bytes <= memory.capacity_bytes,
        tokens_per_second=seconds.tokens_per_second,
    )


def _pieces(work: Work, case: Case) -> Pieces | None:
    return pieces_of(work, ran_by(work)._replace(slices=0.0)) if stack_of(case.row).hides_slices else None


def _by_kind(*, allocated: float, reserved: float, context: float) -> dict[str, float]:
    """A figure of unstated kind is taken for what the allocator holds."""
    return {
        ALLOCATED: allocated,
        ACTIVE: allocated,
        RESERVED: reserved,
        UNSTATED: reserved,
        DEVICE: reserved + context,
    }


def _as_held(case: Case) -> Execution:
    """DeepSpeed's engine has 16 bits, and its stages are all beside our `zero1`."""
    execution = case.execution
    if case.difference.zero is None:
        return execution
    execution = replace(execution, precision="bf16")
    if execution.layout.dp_shard == 1:
        return execution
    return replace(execution, layout=replace(execution.layout, zero_stage=1, reshard_after_forward=False))


def _work(case: Case, execution: Execution) -> Work:
    # No other stack joins the products of adapters.
    inventory = replace(take_inventory(case.job, case.model), joined=frozenset())
    return work_of(case.job, model=case.model, cluster=case.cluster, execution=execution, inventory=inventory)
