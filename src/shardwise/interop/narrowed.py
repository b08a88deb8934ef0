"""A job that leaves open only what a target can say"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from shardwise.errors import UnsupportedError
from shardwise.interop.limits import TrainerLimits
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.file import job_from_data
from shardwise.spec.job.keys import Job

#: Ways of which a product has one at most, in the order in which plans print them.
_KINDS = (("ddp", "zero2", "zero1", "fsdp", "hsdp"), ("pp",), ("tp",), ("cp",))
#: Ways in which a rank holds part of the weights, which is what offload takes to the host.
_SHARDED = ("fsdp", "hsdp")


def narrowed(job: Job, limits: TrainerLimits, *, cluster: Cluster | None, whole_logits: bool) -> Iterator[Job]:
    """Jobs to plan in turn until one fits: the least offloaded first. `cluster`: None where the
    hardware is open. Raises UnsupportedError: the target has none of the job's layouts."""
    on_cpu = cluster is not None and cluster.gpu.kind == "cpu"
    ways = [way for way in _strategies(limits) if not on_cpu or way in limits.on_cpu]
    if limits.whole_in_bf16 and job.method == "full" and (cluster is None or cluster.num_gpus > 1):
        ways = [way for way in ways if (way == "ddp") == (job.train.precision == "bf16")]
    stated = job.layout if isinstance(job.layout, list) else ways
    ways = [way for way in ways if way in stated]
    if not ways and job.stated_layout is None and (cluster is None or cluster.num_gpus > 1):
        if on_cpu:
            raise UnsupportedError(f"hardware: {limits.target} spreads over GPUs only; name GPUs, or cpu:1")
        known = ", ".join(limits.ways) + (" and their products" if limits.products else "")
        raise UnsupportedError(f"layout: {limits.target} has none of {', '.join(stated)}; it has {known}")
    offloads = [job.train.offload] if job.train.offload != "auto" else ["none"] if on_cpu else limits.offloads
    for offload, recompute in product(offloads, _recomputes(job, limits, on_cpu=on_cpu)):
        train: dict[str, Any] = {"offload": offload, **recompute}
        if job.train.loss == "auto" and whole_logits:
            train["loss"] = "full"
        if job.train.precision == "auto":
            train["precision"] = _precision(job, limits, cluster=cluster, sharded=offload in ("parameters", "all"))
        open_ways = [way for way in ways if offload in ("none", "optimizer", "auto") or way in _SHARDED]
        layout: dict[str, Any] = {} if job.stated_layout is not None or not open_ways else {"layout": open_ways}
        yield changed_job(job, train=train, **layout)


def changed_job(job: Job, *, train: dict[str, Any], **keys: Any) -> Job:
    """A job with other values of some keys."""
    data = job.model_dump(mode="json", exclude_unset=True)
    return job_from_data({**data, **keys, "train": {**data.get("train", {}), **train}})


def _strategies(limits: TrainerLimits) -> list[str]:
    if not limits.products:
        return [way for way in limits.ways if way != "single"]
    kinds: list[Sequence[str]] = [["", *(way for way in kind if way in limits.ways)] for kind in _KINDS]
    return [" x ".join(filter(None, ways)) for ways in product(*kinds) if any(ways)]


def _recomputes(job: Job, limits: TrainerLimits, *, on_cpu: bool) -> list[dict[str, Any]]:
    """Without compiling, recompute `auto` looks at all blocks or none."""
    if job.train.gradient_checkpointing != "auto" or "selective" in limits.recomputes:
        return [{}]
    if job.train.compile is True or on_cpu:
        return [{"gradient_checkpointing": kind} for kind in ("none", "full")]
    return [{"compile": False}]


def _precision(job: Job, limits: TrainerLimits, *, cluster: Cluster | None, sharded: bool) -> str:
    alone = cluster is not None and cluster.num_gpus == 1
    if limits.whole_in_bf16 and job.method == "full" and alone:
        return "mixed" if sharded else "bf16"
    on_cpu = cluster is not None and cluster.gpu.kind == "cpu"
    return "mixed" if on_cpu and "fp32" not in limits.precisions else "auto"
