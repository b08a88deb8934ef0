"""What a job can be solved for: the open values of one key, why they end, and what each asks."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from shardwise.catalog.offers import every_size
from shardwise.errors import UnsupportedError
from shardwise.plan.search import Admits, Question, ask, changed, every_layout, on_hardware
from shardwise.plan.work import take_inventory
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.keys import Job
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.plan.found import Extreme

#: More GPUs than this are not tried.
MOST_GPUS = 1024


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """One key whose value is asked for. `values`: all that are open, growing; `limit`: why there is
    none beyond the last, as a sentence; `at`: the question with a value; `admits`: layouts that are
    considered at it; `written`: it as people write it."""

    key: str
    asks: Extreme
    values: Sequence[int]
    limit: str
    at: Callable[[int], Question]
    admits: Callable[[int], Admits] = lambda _: every_layout
    written: Callable[[int], str] = "{:,}".format


def find_unknown(name: str, *, job: Job, model: ModelShape, cluster: Cluster, num_rows: int | None = None) -> Unknown:
    """The unknown that a user's word means: `max_length`, or as in the job file `data.max_length`.
    Raises UnsupportedError: there is no such key, or this job leaves nothing open in it."""
    make = _UNKNOWNS.get(_NAMES.get(name.strip(), ""))
    if make is None:
        near = difflib.get_close_matches(name.strip(), _NAMES, n=1, cutoff=0.6)
        known = f"did you mean {near[0]}?" if near else f"known are {', '.join(_SHORT)}"
        raise _refused(name, f"this is not solved for; {known}")
    return make(job, partial(ask, model=model, cluster=cluster, num_rows=num_rows))


def _max_length(job: Job, asked: Callable[[Job], Question]) -> Unknown:
    base = asked(changed(job, "data", max_length=1))
    most = base.model.max_position_embeddings
    return Unknown(
        key="data.max_length",
        asks="largest",
        values=_rounded(most),
        limit=f"the model was made for {most} positions",
        at=lambda value: replace(base, job=changed(job, "data", max_length=value), length=value, mean_length=value),
    )


def _micro_batch_size(job: Job, asked: Callable[[Job], Question]) -> Unknown:
    base, batch = asked(changed(job, "train", micro_batch_size=1)), job.train.global_batch_size
    return Unknown(
        key="train.micro_batch_size",
        asks="largest",
        values=_rounded(batch),
        limit=f"train.global_batch_size is {batch}, and no rank has more than its share of it",
        at=lambda value: replace(base, job=changed(job, "train", micro_batch_size=value)),
        admits=lambda value: lambda layout: value <= -(-batch // layout.data_world_size),
    )


def _rank(job: Job, asked: Callable[[Job], Question]) -> Unknown:
    adapters = job.adapters
    if adapters is None:
        raise _refused("lora.r", "method is full, which has no adapters; write method: lora")

    def with_rank(value: int) -> Job:
        return job.model_copy(update={"lora": adapters.model_copy(update={"r": value})})

    base = asked(with_rank(1))
    held = base.inventory.adapted | base.inventory.bare
    adapted = [m for _, m in base.model.every_matrix if m.name in held]
    widths = [(min(m.rows, m.columns), m.name.rpartition(".")[2]) for m in adapted]
    most, name = min(widths, default=(min(base.model.vocab_size, base.model.embedding_width), "the head"))
    return Unknown(
        key="lora.r",
        asks="largest",
        values=_rounded(most),
        limit=f"{name} is {most} wide: a larger rank adds nothing to it",
        at=lambda value: replace(base, job=with_rank(value), inventory=take_inventory(with_rank(value), base.model)),
    )


def _gpus(job: Job, asked: Callable[[Job], Question]) -> Unknown:
    base = asked(job)
    cluster = base.cluster
    if cluster.gpu.kind == "cpu":
        why = "CPU processes share one memory, so that more of them hold no more; name GPUs, such as H100-SXM"
        raise _refused("gpus", why)
    sizes = {size.num_gpus: size for size in every_size(cluster, most=MOST_GPUS)}
    return Unknown(
        key="gpus",
        asks="smallest",
        values=sorted(sizes),
        limit=f"more than {max(sizes)} GPUs are not tried",
        at=lambda value: on_hardware(base, sizes[value]),
        written=lambda value: sizes[value].name,
    )


def _refused(name: str, message: str) -> UnsupportedError:
    return UnsupportedError.at(f"--solve {name}", message)


def _rounded(most: int) -> list[int]:
    """Numbers up to the most, as finely as a forecast of memory is sure: about two digits."""
    found, number = list[int](), 1
    while number < most:
        found.append(number)
        number += max(1, 10 ** (len(str(number)) - 2) // 2)
    return [*found, most]


_UNKNOWNS: dict[str, Callable[[Job, Callable[[Job], Question]], Unknown]] = {
    "data.max_length": _max_length,
    "train.micro_batch_size": _micro_batch_size,
    "lora.r": _rank,
    "gpus": _gpus,
}
_SHORT = ("max_length", "micro_batch_size", "lora.r", "gpus")
#: What a user may write -> key.
_NAMES: dict[str, str] = {**{key: key for key in _UNKNOWNS}, **dict(zip(_SHORT, _UNKNOWNS, strict=True)), "r": "lora.r"}
