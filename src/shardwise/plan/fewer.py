"""Whether fewer GPUs than are asked about would be faster: a number that few degrees divide has poor layouts alone."""

from __future__ import annotations

from collections.abc import Container

from shardwise.plan.bounds import Bounds
from shardwise.plan.choices import offloads
from shardwise.plan.exploration import Exploration, contest_of, waiting
from shardwise.plan.explorer import Explorer
from shardwise.plan.question import Question
from shardwise.plan.ranking import chosen_first, to_overtake
from shardwise.plan.shares import rounder_parts
from shardwise.spec.execution import Offload
from shardwise.spec.plan import Candidate
from shardwise.units import format_seconds


def on_fewer(question: Question, best: Candidate | None, *, bounds: Bounds, hopeless: Container[Offload]) -> str | None:
    """A sentence where the job would be faster on a rounder part of the hardware, by more than forecasts can tell
    apart, or fit there and not on all of it; None where it is on none, or the goal asks about parts itself.

    Args:
        question: what is asked.
        best: what is chosen on all of the hardware; None where nothing fits.
        bounds: of the question.
        hopeless: offloads with which nothing is known to fit on any part.
    """
    job, cluster = question.job, question.cluster
    if job.goal != "fastest" or job.stated_layout is not None:
        return None
    parts = {part.num_gpus: part for part in rounder_parts(cluster)}
    if not parts:
        return None
    explorations: list[Exploration] = []
    for offload in offloads(job, cluster):
        if offload in hopeless:
            continue
        explorer = Explorer(question.with_offload(offload), bounds=bounds, host_last=True)
        worth = [part for part in parts.values() if explorer.has_room(part)]
        explorations.append(Exploration(explorer, waiting(explorer, worth)))
    enough = None if best is None else to_overtake([best], goal=job.goal, gpu=cluster.gpu)
    found = contest_of(explorations, enough=enough) if explorations else []
    if not found:
        return None
    better = chosen_first(found, goal=job.goal, gpu=cluster.gpu)[0]
    return _sentence(better, best, name=parts[better.execution.layout.world_size].name)


def _sentence(better: Candidate, best: Candidate | None, *, name: str) -> str:
    strategy, seconds = better.execution.layout.strategy, better.time.step_seconds
    step = f"{strategy} takes {format_seconds(seconds)} a step there"
    if best is None:
        return f"{name} would fit: {step}"
    times = best.time.step_seconds / seconds
    much = f"{100 * times - 100:.0f} % faster" if times < 2 else f"{times:.1f} times as fast"
    return f"{name}, a part of this, would be {much}: {step}"
