"""A plan written by hand, whose every figure is known."""

from dataclasses import replace
from typing import Any

from shardwise.spec.job.file import job_from_data
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.forecast import Candidate, Cost, MemoryForecast, Plan, RankMemory, Rejection, TimeForecast
from shardwise.units import GIB

PARTS = {"weights": 6, "gradients": 3, "optimizer": 12, "activations": 6, "logits": 3, "communication": 0}


def candidate(layout: Layout, *, scale: float = 1.0) -> Candidate:
    parts = {name: int(size * GIB * scale) for name, size in PARTS.items()}
    peak = sum(parts.values())
    first = RankMemory(ranks=(0,), peak_bytes=peak, parts=parts)
    half = RankMemory(ranks=(1, 2, 3), peak_bytes=peak // 2, parts={name: size // 2 for name, size in parts.items()})
    peaks: dict[str, Any] = {"peak_bytes": peak, "peak_reserved_bytes": peak, "capacity_bytes": 48 * GIB}
    within: dict[str, Any] = {"peak_low_bytes": peak - GIB, "peak_high_bytes": peak + GIB}
    shares: dict[str, Any] = {"mfu": 0.4, "gpu_utilization": 0.93, "compute_utilization": 0.8}
    return Candidate(
        execution=Execution(layout=layout, micro_batch_size=4, gradient_accumulation_steps=2),
        fits=peak <= 48 * GIB,
        memory=MemoryForecast(**peaks, **within, peak_instant="backward of layer 31", ranks=(first, half)),
        time=TimeForecast(step_seconds=1.5, tokens_per_second=21000.0, total_seconds=7200.0, **shares),
        cost=Cost(usd=12.5, usd_per_hour=6.25),
        reasons=("it is the fastest of 2 that fit",),
    )


def plan() -> Plan:
    job = job_from_data({"model": "m", "method": "lora", "train": {"global_batch_size": 32, "logging_steps": 10}})
    rejected = Rejection(strategy="tp", layout=Layout(tp=4), reason="tp is not trained by this version")
    model = {"num_parameters": 8_030_000_000, "num_trainable_parameters": 42_000_000}
    asked: dict[str, Any] = {"job": job.to_json(), "hardware": {"name": "4x RTX-6000-Ada"}, "model": model}
    candidates = (candidate(Layout(dp_shard=4)), candidate(Layout(dp_replicate=4), scale=2.0))
    return Plan(**asked, candidates=candidates, chosen=0, rejected=(rejected, rejected))


def nothing_fits() -> Plan:
    whole = plan()
    return replace(whole, candidates=whole.candidates[1:], chosen=None)
