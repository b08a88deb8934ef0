"""A chosen candidate, as targets read it, without planning."""

from typing import Any

import pytest

from shardwise.catalog.gpus import parse_hardware
from shardwise.errors import UnsupportedError
from shardwise.interop.chosen import Chosen, Exported
from shardwise.interop.targets import TARGETS
from shardwise.spec.job.file import job_from_data
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution

#: What most cases share: 8 rows a step on two GPUs.
JOB: dict[str, Any] = {"model": "llama-3.1-8b", "data": {"path": "rows.jsonl"}, "train": {"max_steps": 100}}


def make(*, layout: Any = None, hardware="2x L4", job: Any = None, **how: Any) -> Chosen:
    """Arguments: of the layout, `hardware`, sections of the job, and fields of the execution."""
    sections = {"hardware": hardware, **JOB, **(job or {})}
    sections["train"] = {**JOB["train"], **sections["train"]}
    sections["data"] = {**JOB["data"], **sections["data"]}
    made, cluster = job_from_data(sections), parse_hardware(hardware)
    spread = Layout(**({"dp_shard": 2} if layout is None else layout))
    settings = {"micro_batch_size": 8 // spread.data_world_size, "gradient_accumulation_steps": 1, **how}
    runs = {"execution": Execution(layout=spread, **settings), "cluster": cluster.part(spread.world_size)}
    takes = {"seconds": 5000.0, "steps": made.train.max_steps}
    return Chosen(path="plan.json", job=made, leaves_some=spread.world_size < cluster.num_gpus, **runs, **takes)


def export(chosen: Chosen, to: str) -> Exported:
    return TARGETS[to].write(chosen)


def refusal(chosen: Chosen, to: str) -> str:
    with pytest.raises(UnsupportedError) as refused:
        TARGETS[to].write(chosen)
    return str(refused.value)
