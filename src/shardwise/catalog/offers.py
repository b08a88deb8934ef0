"""Hardware that a question leaves open: `any` of what providers rent out, or a list."""

from dataclasses import dataclass, field, replace
from functools import cache

from shardwise.catalog.gpus import KnownGpu, cluster_of, find_gpu, known_gpus, parse_hardware
from shardwise.catalog.prices import read_table
from shardwise.errors import HardwareError, quoted
from shardwise.spec.cluster import Cluster

ANY = "any"
MAX_ALTERNATIVES = 32


@dataclass(frozen=True, kw_only=True)
class Provider:
    """What one provider rents out, from instances.toml. `source`, `url`: the document it was read
    from; `sizes`: GPU -> how many of it one machine has; `fabric`: GPUs whose largest machines are
    connected by InfiniBand, EFA or RoCE."""

    source: str
    url: str
    sizes: dict[str, list[int]]
    fabric: list[str] = field(default_factory=list[str])


@cache
def providers() -> dict[str, Provider]:
    """All of instances.toml, by name."""
    return {name: Provider(**row) for name, row in read_table("instances").items()}


def is_open(hardware: str) -> bool:
    """Whether a job's `hardware` leaves a choice: `any`, or several separated by commas."""
    return hardware.strip().lower() == ANY or "," in hardware


def alternatives(hardware: str) -> list[Cluster]:
    """The clusters of `4x A100-80GB, 8x L40S`, each as `parse_hardware` reads it. Raises
    HardwareError: one of them cannot be read, or there are too many."""
    names = [name.strip() for name in hardware.split(",") if name.strip()]
    if ANY in (name.lower() for name in names):
        raise HardwareError(
            f"hardware is {quoted(hardware)}: any stands for all hardware on offer and cannot be part of a list; write "
            "any alone, or leave it out of the list"
        )
    if len(names) > MAX_ALTERNATIVES:
        raise HardwareError(f"hardware names {len(names)} alternatives; at most {MAX_ALTERNATIVES} are compared")
    return [parse_hardware(name) for name in dict.fromkeys(names)]


def offered_hardware(*, most: int) -> list[list[Cluster]]:
    """The sizes of every NVIDIA GPU that some provider rents out, the smallest first; at most
    `most` GPUs. Training finds GPUs with nvidia-smi: AMD's are planned for where they are named."""
    kinds = (known for known in known_gpus().values() if not known.gpu.name.startswith("MI"))
    return [sizes for sizes in (offered_sizes(known, most=most) for known in kinds) if sizes]


def machine_sizes(name: str) -> list[int]:
    """How many of a GPU rented machines have, the fewest first."""
    return sorted({size for provider in providers().values() for size in provider.sizes.get(name, [])})


def num_offers(cluster: Cluster) -> int:
    """How many providers rent out such machines; of several machines, those with a fabric."""
    name, size = cluster.gpu.name, cluster.node.num_gpus
    several = cluster.num_nodes > 1
    return sum(size in one.sizes.get(name, []) and (not several or name in one.fabric) for one in providers().values())


def has_fabric(name: str) -> bool:
    """Whether machines of a GPU are rented out that InfiniBand, EFA or RoCE connects."""
    return any(name in provider.fabric for provider in providers().values())


def offered_sizes(known: KnownGpu, *, most: int) -> list[Cluster]:
    """The sizes of one GPU, the smallest first: single machines, then 2, 4, 8, ... machines that
    have a fabric. `known`: the GPU; `most`: GPUs at most."""
    name = known.gpu.name
    inside = [size for size in machine_sizes(name) if size <= most]
    connected = [provider for provider in providers().values() if name in provider.fabric]
    node = max((max(provider.sizes[name]) for provider in connected), default=most)
    counts = [1 << e for e in range(1, most.bit_length()) if (1 << e) * node <= most]
    machines = [cluster_of(known, num_gpus=size) for size in inside]
    return [*machines, *(cluster_of(known, num_gpus=node, num_nodes=count) for count in counts)]


def every_size(cluster: Cluster, *, most: int) -> list[Cluster]:
    """Every number of the GPUs of a cluster that makes one node or whole ones, the smallest first.
    `cluster`: whose GPUs; with several nodes, whose nodes, else nodes of the usual size, or as
    large as it is. `most`: GPUs at most. Raises HardwareError: the catalogue does not have them."""
    known = find_gpu(cluster.gpu.name)
    node = max(known.node_gpus, cluster.node.num_gpus) if cluster.num_nodes == 1 else cluster.node.num_gpus
    nodes, network = replace(cluster.node, num_gpus=node), cluster.network or known.network
    whole = replace(cluster, node=nodes, num_nodes=-(-most // node), network=network)
    return [whole.part(count) for count in (*range(1, min(node, most) + 1), *range(2 * node, most + 1, node))]
