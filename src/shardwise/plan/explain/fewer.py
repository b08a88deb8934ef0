"""Whether fewer GPUs than are asked about would be faster: a number that few degrees divide has poor layouts alone."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from shardwise.plan.search.goals import tie_of
from shardwise.plan.search.gpu_counts import rounder_parts
from shardwise.plan.search.question import Question
from shardwise.plan.search.search import best_alone
from shardwise.spec.plan import Candidate
from shardwise.units import format_seconds


def on_fewer(question: Question, best: Candidate | None) -> str | None:
    """A sentence where the job is faster on a rounder number of GPUs, by more than a tie, or fits only there."""
    job, cluster = question.job, question.cluster
    if job.goal != "fastest" or job.stated_layout is not None:
        return None
    found, name = None, ""
    most = inf if best is None else best.time.step_seconds
    limit = most / (1 + tie_of(cluster.gpu))
    for part in rounder_parts(cluster):
        # What is chosen there may take a little longer than the best there.
        better = best_alone(replace(question, cluster=part), limit=min(most, limit * (1 + tie_of(cluster.gpu))))
        if better is not None and better.time.step_seconds < limit:
            found, name, limit = better, part.name, better.time.step_seconds
    return found and _sentence(found, best, name=name)


def _sentence(better: Candidate, best: Candidate | None, *, name: str) -> str:
    strategy, seconds = better.execution.layout.strategy, better.time.step_seconds
    step = f"{strategy} takes {format_seconds(seconds)} a step there"
    if best is None:
        return f"{name} would fit: {step}"
    times = best.time.step_seconds / seconds
    much = f"{100 * times - 100:.0f} % faster" if times < 2 else f"{times:.1f} times as fast"
    return f"{name}, a part of this, would be {much}: {step}"
