"""What a plan says of an execution, of the hardware and of the model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shardwise.plan.memory.work import Work
from shardwise.plan.search.question import Question
from shardwise.spec.attention import attention_refusal
from shardwise.spec.cluster import Cluster
from shardwise.spec.plan import Candidate, Cost, MemoryForecast, TimeForecast
from shardwise.spec.support import not_trained


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """An execution with all that is known of it."""

    work: Work
    memory: MemoryForecast
    time: TimeForecast


def candidate_of(question: Question, forecast: Forecast) -> Candidate:
    """What is known of an execution, as plan.json has it."""
    work, time = forecast.work, forecast.time
    hourly = _usd_per_hour(work)
    usd = None if hourly is None or time.total_seconds is None else hourly * time.total_seconds / 3600
    return Candidate(
        execution=work.execution,
        fits=True,
        memory=forecast.memory,
        time=time,
        cost=Cost(usd=usd, usd_per_hour=hourly),
        not_trained=tuple(_not_trained(question, work)),
    )


def _not_trained(question: Question, work: Work) -> list[str]:
    kernel = attention_refusal(work.execution.attn_implementation, work.cluster.gpu)
    return [*not_trained(question.job, work.execution, model=question.model), *([kernel] if kernel else [])]


def _usd_per_hour(work: Work) -> float | None:
    """All GPUs at their typical price."""
    price = work.cluster.gpu.typical_usd_per_hour
    return None if price is None else price * work.execution.layout.world_size


def hardware_json(cluster: Cluster) -> dict[str, Any]:
    """The cluster as plan.json has it; `notes` where there are any."""
    plain = asdict(cluster)
    notes = list(plain.pop("notes"))
    return {"name": cluster.name, "num_gpus": cluster.num_gpus, **plain, **({"notes": notes} if notes else {})}


def model_json(question: Question) -> dict[str, Any]:
    """The model as plan.json has it."""
    return {**question.model.to_json(), "num_trainable_parameters": question.inventory.trained_elements}
