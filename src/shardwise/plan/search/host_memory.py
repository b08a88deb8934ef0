"""The host's memory, where a plan turns to it unasked: how much of it is counted on."""

from __future__ import annotations

from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import Execution
from shardwise.units import GIB

#: How much memory a machine has is not known. Servers are sold with about three times what their GPUs have (NVIDIA DGX
#: A100 and DGX H100: 2 TB beside 640 GB, by their data sheets).
HOST_OVER_GPU_MEMORY = 3.0


def bytes_beyond_host(cluster: Cluster, execution: Execution, *, of_rank: int) -> int | None:
    """Bytes that offload takes of one machine's memory, with `of_rank` for each rank; None where it has room."""
    node = cluster.node
    held = of_rank * min(node.num_gpus, execution.layout.world_size)
    return held if held > HOST_OVER_GPU_MEMORY * node.num_gpus * node.gpu.usable_bytes else None


def host_is_too_small(execution: Execution, held: int) -> str:
    """Why an offload that the job does not state is not taken: it takes more memory than machines have."""
    return (
        f"offload {execution.offload} would put {held / GIB:.1f} GiB into the host's memory, more than "
        f"{HOST_OVER_GPU_MEMORY:.0f} times what its GPUs have; where it has as much, state train.offload: "
        f"{execution.offload}"
    )
