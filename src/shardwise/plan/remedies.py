"""What would make a job fit that does not, each change tried before it is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwise.errors import UnsupportedError
from shardwise.plan.choices import executions, layouts
from shardwise.plan.inventory import take_inventory
from shardwise.plan.question import Question, forecasts, left_out
from shardwise.spec.cluster import Cluster

_SHORTEST_LENGTH = 64
_MOST_GPUS_ADVISED = 4096


def remedies(question: Question) -> Iterator[str]:
    """Sentences, the least change first; none where nothing tried would help."""
    length = _longest_that_fits(question)
    if length is not None:
        yield f"data.max_length {length} would fit"
    lora = _with_adapters(question)
    if lora is not None and _fits(lora):
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


def _fits(question: Question) -> bool:
    """Whether any execution of any layout that the trainer accepts fits."""
    for choice in layouts(question.job, question.cluster):
        if choice.reason is not None:
            continue
        groups = [group[:1] for group in executions(question.job, question.model, choice)]
        if left_out(question, choice, groups[0][0]):
            continue
        if any(m.peak_high_bytes <= m.capacity_bytes for _, m in forecasts(question, choice, groups)):
            return True
    return False


def _longest_that_fits(question: Question) -> int | None:
    """The longest sequence that fits, in steps of the shortest one considered."""
    low, high = 0, question.length // _SHORTEST_LENGTH
    while high - low > 1:
        middle = (low + high) // 2
        fits = _fits(replace(question, length=middle * _SHORTEST_LENGTH))
        low, high = (middle, high) if fits else (low, middle)
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
        if _fits(replace(question, cluster=cluster)):
            return cluster
    return None
