"""What the planner is asked: a job, its model and its hardware, and what is derived from them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Any

from shardwise.catalog.probe import screen_bytes
from shardwise.errors import UnsupportedError
from shardwise.plan.costs.piece import BlockTime
from shardwise.plan.memory import Peaks
from shardwise.plan.search.layouts import Choice, layouts
from shardwise.plan.time import Pieces
from shardwise.plan.work import Inventory, Work, take_inventory, work_of
from shardwise.spec.adapters.targets import attention_targets
from shardwise.spec.cluster import Cluster
from shardwise.spec.data_facts import Lengths
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.execution import Execution, Offload, padded_length
from shardwise.spec.model.shape import ModelShape


@dataclass(kw_only=True, eq=False)
class Memo:
    """What was computed of a question: layouts by hardware and length, work by length, memory by
    job, seconds of blocks, and lower bounds of steps by hardware."""

    layouts: dict[object, list[Choice]] = field(default_factory=dict[object, list[Choice]])
    works: dict[object, dict[object, Work]] = field(default_factory=dict[object, dict[object, Work]])
    peaks: dict[object, Peaks] = field(default_factory=dict[object, Peaks])
    ran: dict[object, BlockTime] = field(default_factory=dict[object, BlockTime])
    pieces: dict[object, Pieces] = field(default_factory=dict[object, Pieces])
    bounds: dict[object, dict[object, float]] = field(default_factory=dict[object, dict[object, float]])


@dataclass(frozen=True, kw_only=True)
class Question:
    """A job on its hardware. `length` and `mean_length` are padded tokens of the longest and mean
    sequence, for memory and time; `filled` is the share of the latter without padding.
    `tries_offload`: the job leaves offload open. `at_a_desk`: cards may drive a screen.
    `too_short`: why compiling does not pay. `memo` is shared over hardware."""

    job: Job
    model: ModelShape
    cluster: Cluster
    inventory: Inventory
    num_rows: int | None
    length: int
    mean_length: int
    document: float | None = None
    filled: float = 1.0
    tries_offload: bool = False
    at_a_desk: bool = True
    too_short: str | None = None
    memo: Memo = field(default_factory=Memo, compare=False, repr=False)

    @property
    def screen_bytes(self) -> int:
        """What a screen may take of a card's memory."""
        return self.at_a_desk * screen_bytes(self.job.hardware, self.cluster.gpu.name)

    def eagerly(self, why: str) -> Question:
        """The question with blocks that are not compiled, and why."""
        return replace(self, job=changed(self.job, "train", compile=False), too_short=why)

    def with_offload(self, offload: Offload) -> Question:
        """The question with an offload stated."""
        tries = self.tries_offload or self.job.train.offload == "auto"
        return replace(self, job=changed(self.job, "train", offload=offload), tries_offload=tries)

    @property
    def layouts(self) -> list[Choice]:
        """Those of all its hardware, whatever is offloaded."""
        key = self.cluster.name, self.job.data.max_length
        if key not in self.memo.layouts:
            self.memo.layouts[key] = list(layouts(self.job, self.model, self.cluster))
        return self.memo.layouts[key]

    @property
    def asked(self) -> dict[str, Any]:
        """The job as plan.json has it."""
        return (self.job if self.too_short is None else changed(self.job, "train", compile="auto")).to_json()

    @cached_property
    def longest(self) -> Job:
        """The job as if every sequence were as long as the longest."""
        return changed(self.job, "data", max_length=self.length)

    @cached_property
    def mean(self) -> Job:
        """The job as if every sequence had the mean length."""
        return changed(self.job, "data", max_length=self.mean_length)


def ask(
    job: Job, *, model: ModelShape, cluster: Cluster, num_rows: int | None = None, lengths: Lengths | None = None
) -> Question:
    """Puts a question together. Raises UnsupportedError: the job asks for what has no forecast."""
    _check_length(job, model)
    limit = job.data.max_length
    mean_length = padded_length(limit if lengths is None else ceil(lengths.mean), max_length=limit)
    return Question(
        job=job,
        model=model,
        cluster=cluster,
        inventory=take_inventory(job, model),
        num_rows=job.data.num_rows if num_rows is None else num_rows,
        length=padded_length(limit if lengths is None else lengths.longest, max_length=limit),
        mean_length=mean_length,
        filled=1.0 if lengths is None else lengths.mean / mean_length,
        document=lengths and lengths.document,
    )


def _check_length(job: Job, model: ModelShape) -> None:
    length, most = job.data.max_length, model.max_position_embeddings
    if model.position_parameters and length > most:
        raise UnsupportedError(
            f"data.max_length is {length}, and the model has {most} learned positions; lower it to {most}"
        )
    if job.train.attn_implementation == "sdpa" and (model.attention_softcap or model.eager_attention):
        capped = "cannot cap scores as this model does"
        why = capped if model.attention_softcap else "transformers has not for this model"
        raise UnsupportedError(f"train.attn_implementation is sdpa, which {why}; use eager")


def on_hardware(question: Question, cluster: Cluster) -> Question:
    """The question asked of other hardware."""
    return replace(question, cluster=cluster, job=question.job.model_copy(update={"hardware": cluster.name}))


def of_job(question: Question, job: Job) -> Question:
    """The question of a job with given tensors. Raises UnsupportedError: no forecast for them."""
    # What was remembered was of other tensors.
    return replace(question, job=job, inventory=take_inventory(job, question.model), memo=Memo())


def on_attention(question: Question) -> tuple[list[str], Job] | None:
    """The job with adapters on attention alone, and their names; None without stacked ones."""
    lora = question.job.adapters
    if lora is None or not question.inventory.bare:
        return None
    names = attention_targets(question.model)
    return names, question.job.model_copy(update={"lora": lora.model_copy(update={"target_modules": names})})


def work_on(question: Question, cluster: Cluster, execution: Execution) -> Work:
    """One execution of the question on a part of its cluster."""
    longest, model, inventory = question.longest, question.model, question.inventory
    return work_of(longest, model=model, cluster=cluster, execution=execution, inventory=inventory)


def changed(job: Job, section: str, **values: Any) -> Job:
    """A job with other values of some keys of a section, which are not checked."""
    return job.model_copy(update={section: getattr(job, section).model_copy(update=values)})
