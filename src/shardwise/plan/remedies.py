"""What would make a job fit that does not, each change tried before it is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwise.errors import UnsupportedError
from shardwise.plan.choices import layouts
from shardwise.plan.explorer import Explorer
from shardwise.plan.inventory import take_inventory
from shardwise.plan.question import Question
from shardwise.spec.cluster import Cluster

_SHORTEST_LENGTH = 64
_MOST_GPUS_ADVISED = 1024


def remedies(question: Question) -> Iterator[str]:
    """Sentences, the least change first; none where nothing tried would help."""
    length = _longest_thatfits(question)
    if length is not None:
        yield f"data.max_length {length} would fit"
    lora = _with_adapters(question)
    if lora is not None and fits(lora):
        yield "method: lora would fit"
    gpus = _gpus_that_fit(question)
    if gpus is not None:
        yield f"{gpus.name} would fit"


def _with_adapters(question: Question) -> Question | None:
    """The question asked for LoRA, where that is another one and a forecast is made for it."""
    if question.job.method != "full":
        return None
    lora = question.job.model_copy(update={"method": "lora"})
    try:
        return replace(question, job=lora, inventory=take_inventory(lora, question.model))
    except UnsupportedError:
        return None


def fits(question: Question, *, pipelines: bool = True) -> bool:
    """Whether any execution that is considered fits.

    Args:
        question: whose.
        pipelines: whether they are considered; on many GPUs they are most of what there is.
    """
    explorer = Explorer(question)
    choices = (one for one in layouts(question.job, question.model, question.cluster) if one.reason is None)
    open_ones = (one for one in choices if pipelines or one.layout.pp == 1)
    return explorer.fits(group for one in open_ones for group in explorer.groups(one))


def _longest_thatfits(question: Question) -> int | None:
    """The longest sequence that fits, in steps of the shortest one considered."""
    low, high = 0, question.length // _SHORTEST_LENGTH
    while high - low > 1:
        middle = (low + high) // 2
        enough = fits(replace(question, length=middle * _SHORTEST_LENGTH))
        low, high = (middle, high) if enough else (low, middle)
    return low * _SHORTEST_LENGTH or None


def _gpus_that_fit(question: Question) -> Cluster | None:
    """The cluster doubled, inside its nodes up to eight GPUs, until the job fits."""
    cluster = question.cluster
    if cluster.gpu.kind == "cpu" or question.job.layout != "auto":
        return None
    while cluster.num_gpus * 2 <= _MOST_GPUS_ADVISED:
        if cluster.num_nodes == 1 and cluster.node.num_gpus * 2 <= 8:
            cluster = replace(cluster, node=replace(cluster.node, num_gpus=cluster.node.num_gpus * 2))
        else:
            cluster = replace(cluster, num_nodes=cluster.num_nodes * 2, network=cluster.network or cluster.node.link)
        if fits(replace(question, cluster=cluster), pipelines=False):
            return cluster
    return None
