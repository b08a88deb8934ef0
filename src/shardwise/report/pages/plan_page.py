"""The plan as a page: what was chosen and why, memory and time of every candidate, one step as a timeline."""

from __future__ import annotations

from shardwise.report.pages.charts import Chart, Stack, memory_chart, timeline_chart
from shardwise.report.pages.render import render
from shardwise.report.plan_answers import answers
from shardwise.spec.plan import PARTS, Candidate, Cost, Plan, RankMemory
from shardwise.spec.timeline import Timeline
from shardwise.units import format_bytes, format_count, format_seconds

MAX_CANDIDATES = 16
#: A bar ends at this many capacities; its figure says how much is needed.
LONGEST_BAR = 1.6

WORDS = ("Strategy", "Layout", "Batch", "Recompute", "Offload")
FIGURES = ("Peak memory", "Step", "Tokens/s", "GPU busy", "Computing", "MFU", "Cost")


def plan_html(plan: Plan, timeline: Timeline | None) -> str:
    """The whole page."""
    candidates = shown(plan)
    offloaded = any(candidate.execution.offload != "none" for candidate in candidates)
    return render(
        "plan.html",
        plan=plan,
        model=str(plan.job.get("model", "model")),
        hardware=str(plan.hardware.get("name", "this machine")),
        facts=_facts(plan),
        answers=answers(plan),
        cards=_cards(plan.best),
        memory=memory_of(plan, candidates),
        words=WORDS if offloaded else WORDS[:-1],
        figures=FIGURES,
        rows=[(one, one is plan.best, _words(one, offloaded=offloaded), _figures(one)) for one in candidates],
        timeline=None if timeline is None else timeline_chart(timeline),
        strategy="" if timeline is None else timeline.strategy,
        rejected=list(dict.fromkeys((one.strategy, one.reason) for one in plan.rejected)),
    )


def shown(plan: Plan) -> list[Candidate]:
    """The first candidates, and the chosen one in any case."""
    return [one for index, one in enumerate(plan.candidates) if index < MAX_CANDIDATES or index == plan.chosen]


def worst_rank(candidate: Candidate) -> RankMemory:
    """The rank with the highest peak."""
    return max(candidate.memory.ranks, key=lambda rank: rank.peak_bytes)


def _facts(plan: Plan) -> str:
    trained = plan.model.get("num_trainable_parameters")
    share = f", {format_count(trained)} of them trained" if isinstance(trained, int) else ""
    batch, length = plan.job["train"]["global_batch_size"], plan.job["data"]["max_length"]
    return (
        f"{plan.job.get('method')} · {format_count(plan.model['num_parameters'])} parameters{share} · "
        f"{batch} sequences of at most {length} tokens per step"
    )


def _cards(best: Candidate | None) -> list[tuple[str, str, str]]:
    """(name, value, what stands below it)."""
    if best is None:
        return []
    time, memory = best.time, best.memory
    limits = f"at most {format_bytes(memory.peak_high_bytes)} of {format_bytes(memory.capacity_bytes)}"
    total = "not known" if time.total_seconds is None else format_seconds(time.total_seconds)
    return [
        ("peak memory", format_bytes(memory.peak_bytes), limits),
        ("step", format_seconds(time.step_seconds), f"{format_count(time.tokens_per_second)} tokens/s"),
        ("GPU busy", _percent(time.gpu_utilization), f"computing {_percent(time.compute_utilization)}"),
        ("whole run", total, f"cost {_cost(best.cost)}"),
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _cost(cost: Cost) -> str:
    if cost.usd is not None:
        return f"${cost.usd:,.2f}"
    return "not known" if cost.usd_per_hour is None else f"${cost.usd_per_hour:,.2f}/h"


def memory_of(plan: Plan, candidates: list[Candidate]) -> Chart | None:
    """A bar for each candidate: the rank that needs most, part by part."""
    if not candidates:
        return None
    stacks = [
        Stack(
            label=candidate.execution.layout.strategy,
            under=_sizes(candidate),
            parts={part: worst_rank(candidate).parts.get(part, 0) for part in PARTS},
            suffix="" if candidate.fits else " !",
            strong=candidate is plan.best,
            new=True,
        )
        for candidate in candidates
    ]
    capacity = max(candidate.memory.capacity_bytes for candidate in candidates)
    return memory_chart(stacks, title="Memory of one GPU, by candidate and part", capacity=capacity, most=LONGEST_BAR)


def _sizes(candidate: Candidate) -> str:
    """What tells candidates of one strategy apart: `4x2 full, offload optimizer`."""
    execution = candidate.execution
    sizes = f"{execution.micro_batch_size}x{execution.gradient_accumulation_steps}"
    recompute = "" if execution.gradient_checkpointing == "none" else f" {execution.gradient_checkpointing}"
    return f"{sizes}{recompute}" + ("" if execution.offload == "none" else f", offload {execution.offload}")


def _words(candidate: Candidate, *, offloaded: bool) -> list[str]:
    execution = candidate.execution
    sizes = f"{execution.micro_batch_size} × {execution.gradient_accumulation_steps}"
    words = [execution.layout.written, sizes, execution.gradient_checkpointing]
    return [*words, execution.offload] if offloaded else words


def _figures(candidate: Candidate) -> list[str]:
    time = candidate.time
    return [
        format_bytes(candidate.memory.peak_bytes) + ("" if candidate.fits else " !"),
        format_seconds(time.step_seconds),
        format_count(time.tokens_per_second),
        _percent(time.gpu_utilization),
        _percent(time.compute_utilization),
        _percent(time.mfu),
        _cost(candidate.cost),
    ]
