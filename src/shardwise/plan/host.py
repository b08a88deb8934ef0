"""The host's memory, where a plan turns to it unasked: how much of it is counted on."""

from __future__ import annotations

from shardwise.plan.choices import bases
from shardwise.plan.memory import most_on_host
from shardwise.plan.products import Choice
from shardwise.plan.question import Question, work_on
from shardwise.spec.layout import Layout
from shardwise.units import GIB

#: How much memory a machine has is not known. Servers are sold with about three times what their GPUs have (NVIDIA DGX
#: A100 and DGX H100: 2 TB beside 640 GB, by their data sheets).
HOST_OVER_GPU_MEMORY = 3.0


def host_is_too_small(question: Question, choice: Choice) -> str | None:
    """Why an offload that nobody asked for takes more of the host's memory than machines have; None where it does not.

    An offload that the job states is obeyed: whoever states it knows the machine.
    """
    held = bytes_beyond_host(question, choice)
    if held is None:
        return None
    offload = question.job.train.offload
    return (
        f"offload {offload} would put {held / GIB:.1f} GiB into the host's memory, more than "
        f"{HOST_OVER_GPU_MEMORY:.0f} times what its GPUs have; where it has as much, state train.offload: {offload}"
    )


def host_has_room(question: Question) -> bool:
    """Whether the host may be large enough for any layout on all GPUs: they hold one copy there between them."""
    cluster = question.cluster
    alone = Choice(strategy="single", layout=Layout(), cluster=cluster)
    held = bytes_beyond_host(question, alone)
    if held is None:
        return True
    in_each_node = held * min(cluster.node.num_gpus, cluster.num_gpus) / cluster.num_gpus
    return in_each_node <= HOST_OVER_GPU_MEMORY * cluster.node.num_gpus * cluster.gpu.usable_bytes


def bytes_beyond_host(question: Question, choice: Choice) -> float | None:
    """Bytes that such an offload takes of the memory of one machine; None where that is not too many of them."""
    if not question.tries_offload or question.job.train.offload == "none":
        return None
    work = work_on(question, choice.cluster, next(bases(question.job, question.model, choice)))
    node = choice.cluster.node
    held = most_on_host(work) * min(node.num_gpus, work.execution.layout.world_size)
    return held if held > HOST_OVER_GPU_MEMORY * node.num_gpus * choice.cluster.gpu.usable_bytes else None
