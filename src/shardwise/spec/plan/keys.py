"""The keys of plan.json that this program reads.

Unknown keys are refused in what is executed, and passed over elsewhere: later versions add keys.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator

from shardwise.spec.data_facts import DataFacts
from shardwise.spec.job.keys import LayoutKeys
from shardwise.spec.job.strict import Strict, Text, Whole
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Attention, Checkpointing, LossKind, Offload, Precision
from shardwise.spec.layout.optimizers import OptimizerName
from shardwise.spec.plan.disk import Disk
from shardwise.spec.plan.forecast import Cost, MemoryForecast, TimeForecast
from shardwise.spec.plan.found import FoundBatch
from shardwise.spec.plan.offers import Offer
from shardwise.spec.plan.solved import Solved

Bytes = Annotated[int, Field(ge=0, le=10**18)]


class _Open(Strict):
    """A part of plan.json that nothing obeys: keys that are not known are passed over."""

    model_config = ConfigDict(extra="ignore")


class _Layout(LayoutKeys):
    @model_validator(mode="after")
    def _degrees_agree(self) -> Self:
        Layout(**self.model_dump())
        return self


class _Candidate(Strict):
    strategy: Text
    layout: _Layout
    micro_batch_size: Whole
    gradient_accumulation_steps: Whole
    gradient_checkpointing: Checkpointing
    offload: Offload
    precision: Precision
    optimizer: OptimizerName
    loss: LossKind
    attn_implementation: Attention
    compile: bool
    reduce_once: bool = False
    fits: bool
    memory: MemoryForecast
    time: TimeForecast
    cost: Cost
    reasons: list[str]
    not_trained: list[str] = Field(default_factory=list[str])


class _Rejection(_Open):
    strategy: str
    layout: _Layout
    reason: str


class _Prices(_Open):
    date: str
    source: str


class _Model(_Open):
    num_parameters: Bytes | None = None
    num_trainable_parameters: Bytes | None = None


class _Hardware(_Open):
    name: str | None
    num_gpus: Whole | None = None


class PlanKeys(_Open):
    """All keys of plan.json that this program reads."""

    job: dict[str, Any]
    hardware: _Hardware
    model: _Model
    chosen: Annotated[int, Field(ge=0)] | None
    candidates: list[_Candidate]
    rejected: list[_Rejection]
    advice: list[str] = Field(default_factory=list[str])
    solved: Solved | None = None
    found_batch: FoundBatch | None = None
    disk: Disk | None = None
    hardware_options: list[Offer] = Field(default_factory=list[Offer])
    prices: _Prices | None = None
    data: DataFacts | None = None
    data_notes: list[str] = Field(default_factory=list[str])
