"""Hardware that a question leaves open: `any` of the catalogue in the sizes it is rented in, or a list of them."""

from __future__ import annotations

from dataclasses import replace

from shardwise.catalog.gpus import KnownGpu, cluster_of, find_gpu, known_gpus, parse_hardware
from shardwise.errors import HardwareError, quoted
from shardwise.spec.cluster import Cluster

ANY = "any"
MAX_ALTERNATIVES = 32


def is_open(hardware: str) -> bool:
    """Whether a job's `hardware` leaves a choice: `any`, or several separated by commas."""
    return hardware.strip().lower() == ANY or "," in hardware


def alternatives(hardware: str) -> list[Cluster]:
    """The clusters of `4x A100-80GB, 8x L40S`, each as `parse_hardware` reads it.

    Raises:
        HardwareError: one of them is none, or there are too many.
    """
    names = [name.strip() for name in hardware.split(",") if name.strip()]
    if ANY in (name.lower() for name in names):
        raise HardwareError(
            f"hardware is {quoted(hardware)}: any is all of the catalogue, so that nothing stands beside it in a list; "
            "write any alone, or leave it out of the list"
        )
    if len(names) > MAX_ALTERNATIVES:
        raise HardwareError(f"hardware names {len(names)} alternatives; at most {MAX_ALTERNATIVES} are compared")
    return [parse_hardware(name) for name in dict.fromkeys(names)]


def catalogue_sizes(*, most: int) -> list[list[Cluster]]:
    """Of every GPU of the catalogue the sizes it is rented in, the smallest first.

    Args:
        most: GPUs at most.
    """
    return [rented_sizes(known, most=most) for known in known_gpus().values()]


def rented_sizes(known: KnownGpu, *, most: int) -> list[Cluster]:
    """1, 2, 4, ... of a node, the whole node, then 2, 4, 8, ... nodes.

    Args:
        known: the GPU.
        most: GPUs at most.
    """
    node = known.node_gpus
    inside = (1 << e for e in range(node.bit_length()) if 1 << e < node)
    nodes = (node << e for e in range(most.bit_length()))
    whole = _as_many(known, cluster_of(known, num_gpus=node), most=most)
    return [whole.part(count) for count in (*inside, *nodes) if count <= most]


def every_size(cluster: Cluster, *, most: int) -> list[Cluster]:
    """Every number of the GPUs of a cluster that makes one node or whole ones, the smallest first.

    Args:
        cluster: whose GPUs; with several nodes, whose nodes, else nodes of the usual size, or as large as it is.
        most: GPUs at most.

    Raises:
        HardwareError: the catalogue does not have them.
    """
    known = find_gpu(cluster.gpu.name)
    node = max(known.node_gpus, cluster.node.num_gpus) if cluster.num_nodes == 1 else cluster.node.num_gpus
    whole = _as_many(known, replace(cluster, node=replace(cluster.node, num_gpus=node)), most=most)
    return [whole.part(count) for count in (*range(1, min(node, most) + 1), *range(2 * node, most + 1, node))]


def _as_many(known: KnownGpu, cluster: Cluster, *, most: int) -> Cluster:
    """As many nodes of a cluster as there may be GPUs, whose parts are asked for."""
    return replace(cluster, num_nodes=-(-most // cluster.node.num_gpus), network=cluster.network or known.network)
