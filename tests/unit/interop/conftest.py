"""A chosen candidate, as targets read it, without planning."""

from collections.abc import Callable
from typing import Any

import pytest

from shardwise.catalog.gpus import parse_hardware
from shardwise.errors import UnsupportedError
from shardwise.interop.chosen import Chosen, Exported
from shardwise.interop.targets import TARGETS
from shardwise.spec.job.file import job_from_data
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from tests.refusals import said_by

#: What most cases share: 8 rows a step on two GPUs.
JOB: dict[str, Any] = {"model": "llama-3.1-8b", "data": {"path": "rows.jsonl"}, "train": {"max_steps": 100}}
Make = Callable[..., Chosen]


@pytest.fixture
def make() -> Make:
    """Arguments: of the layout, `hardware`, sections of the job, and fields of the execution."""

    def made(
        *, layout: dict[str, Any] | None = None, hardware: str = "2x L4", job: dict[str, Any] | None = None, **how: Any
    ) -> Chosen:
        degrees = {"dp_shard": 2} if layout is None else layout
        sections = {**JOB, **(job or {})}
        sections["train"] = {**JOB["train"], **sections["train"]}
        sections["data"] = {**JOB["data"], **sections["data"]}
        spread = Layout(**degrees)
        ranks = spread.data_world_size
        settings = {"micro_batch_size": 8 // ranks, "gradient_accumulation_steps": 1, **how}
        return Chosen(
            path="plan.json",
            job=job_from_data({"hardware": hardware, **sections}),
            execution=Execution(layout=spread, **settings),
            cluster=parse_hardware(hardware).part(spread.world_size),
            leaves_some=spread.world_size < parse_hardware(hardware).num_gpus,
            seconds=5000.0,
            steps=job_from_data({"hardware": hardware, **sections}).train.max_steps,
        )

    return made


def export(chosen: Chosen, to: str) -> Exported:
    return TARGETS[to].write(chosen)


def refusal(chosen: Chosen, to: str) -> str:
    return said_by(UnsupportedError, TARGETS[to].write, chosen)
