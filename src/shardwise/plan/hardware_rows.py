"""The rows of a comparison of hardware: prices of all GPUs, and what the best execution takes."""

from __future__ import annotations

from dataclasses import replace

from shardwise.catalog.prices import price_of
from shardwise.spec.cluster import Cluster
from shardwise.spec.job import Goal
from shardwise.spec.offers import Offer, Range
from shardwise.spec.plan import Candidate


def priced(cluster: Cluster, fits: bool | None, reason: str | None = None) -> Offer:
    """A row with the prices of all GPUs and nothing else."""
    gpu, count, price = cluster.gpu, cluster.num_gpus, price_of(cluster.gpu.name)
    typical = gpu.typical_usd_per_hour
    return Offer(
        hardware=cluster.name,
        num_gpus=count,
        fits=fits,
        capacity_bytes=gpu.usable_bytes,
        usd_per_hour=_times(gpu.usd_per_hour, count),
        typical_usd_per_hour=None if typical is None else typical * count,
        price_providers=price.providers if price else 0,
        reason=reason,
    )


def row(cluster: Cluster, candidate: Candidate, *, shown: bool, best_for: tuple[Goal, ...]) -> Offer:
    """A row with all figures: hardware, the best execution on it, whether it is shown, the goals it is best for."""
    known, layout, time = priced(cluster, fits=True), candidate.execution.layout, candidate.time
    hours = None if time.total_seconds is None else time.total_seconds / 3600
    per_million = 1e6 / time.tokens_per_second / 3600
    typical = known.typical_usd_per_hour
    return replace(
        known,
        shown=shown,
        best_for=best_for,
        strategy=layout.strategy,
        written=layout.written,
        peak_bytes=candidate.memory.peak_bytes,
        capacity_bytes=candidate.memory.capacity_bytes,
        step_seconds=time.step_seconds,
        total_seconds=time.total_seconds,
        usd=_times(known.usd_per_hour, hours),
        usd_per_million_tokens=_times(known.usd_per_hour, per_million),
        typical_usd=None if typical is None or hours is None else typical * hours,
        typical_usd_per_million_tokens=None if typical is None else typical * per_million,
    )


def _times(rate: Range | None, hours: float | None) -> Range | None:
    return None if rate is None or hours is None else (rate[0] * hours, rate[1] * hours)
