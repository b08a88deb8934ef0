"""What a plan says in a sentence: whether the job fits and how fast, and what it costs."""

from __future__ import annotations

from shardwise.spec.layout.axes import Layout
from shardwise.spec.plan.forecast import Cost, Plan
from shardwise.spec.plan.offers import format_dollars
from shardwise.units import format_count, format_seconds


def named(strategy: str, layout: Layout) -> str:
    """A strategy with the degrees of its layout."""
    return f"{strategy} ({layout.written})" if layout.world_size > 1 else strategy


def verdict(plan: Plan) -> str:
    """Whether it fits, with what, and how fast."""
    if plan.best is None:
        return f"nothing fits on {plan.hardware.get('name', 'this machine')}"
    execution, time = plan.best.execution, plan.best.time
    offload = "" if execution.offload == "none" else f" with offload {execution.offload}"
    speed = f"{format_seconds(time.step_seconds)} a step, {format_count(time.tokens_per_second)} tokens/s"
    return (
        f"{'forecast only' if plan.best.not_trained else 'fits'}: {named(execution.layout.strategy, execution.layout)}"
        f"{offload}, {speed}, GPUs busy {100 * time.gpu_utilization:.0f} % of the time"
    )


def cost_text(cost: Cost) -> str:
    """The price of the run, else of an hour, else a dash."""
    if cost.usd is not None:
        return format_dollars(cost.usd)
    return f"{format_dollars(cost.usd_per_hour)}/h" if cost.usd_per_hour is not None else "-"
