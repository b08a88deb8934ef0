"""What generation with a job's model needs: weights, and the KV cache by length and sequences."""

from collections.abc import Sequence
from math import inf

from shardwise.errors import UnsupportedError
from shardwise.plan.disk import width_of
from shardwise.plan.work import DtypeBytes, take_inventory
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.keys import Job
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.plan.generation import USABLE, Generation, Needs, attending_blocks, cache_elements, whole_heads

#: Lengths and numbers of sequences that are shown beside those asked for.
LENGTHS, SEQUENCES = (1024, 4096, 16384, 65536), (1, 4, 16, 64)


def plan_generation(
    job: Job, *, model: ModelShape, clusters: Sequence[Cluster], is_open: bool, dtype: str | None = None
) -> Generation:
    """Counts what generating needs: weights as `train` leaves them (QLoRA's in 4 bits, adapters
    beside the base), each once over all GPUs, with keys and values of the sequences answered at
    once. `clusters`: the hardware, or, where it `is_open`, all that is on offer; `dtype`: of
    weights, keys and values; None for that after training. Raises UnsupportedError: adapters that
    no forecast is made for, or more tokens than the model has positions."""
    if dtype is None:
        kept = job.adapters is not None or job.train.save_dtype == "auto"
        dtype = model.storage_dtype if kept else job.train.save_dtype
    element = width_of(dtype)
    types = DtypeBytes(trainable=element, frozen=element, compute=element, compute_name=dtype)
    inventory = take_inventory(job, model)
    weights = int(inventory.over_all(lambda unit: unit.stored_bytes(types)))
    length, sequences = _length(job, model), job.train.global_batch_size * job.sides

    def total(length: int, sequences: int) -> int:
        return weights + sequences * cache_elements(model, length) * element

    large = [cluster for cluster in clusters if total(length, sequences) <= _room(cluster)]
    found = (min(large, key=_price) if large else None) if is_open else clusters[0]
    room = None if found is None else _room(found)

    def needs(length: int, sequences: int) -> Needs:
        whole = total(length, sequences)
        fits = None if room is None else whole <= room
        return Needs(length=length, sequences=sequences, cache_bytes=whole - weights, total_bytes=whole, fits=fits)

    positions = model.max_position_embeddings
    lengths = sorted({length, *(one for one in (*LENGTHS, positions) if one and one <= (positions or inf))})
    counts = sorted({sequences, *SEQUENCES})
    return Generation(
        model=job.model,
        method=job.method,
        type_name=dtype,
        weight_bytes=weights,
        asked=needs(length, sequences),
        table=tuple(needs(one, many) for one in lengths for many in counts),
        hardware=None if found is None else found.name,
        capacity_bytes=room,
        usd_per_hour=None if found is None or _price(found)[0] == inf else _price(found)[0],
        whole_heads_bytes=(whole_heads(model) or 0) * element or None,
        blocks_without=model.num_layers - attending_blocks(model),
    )


def _length(job: Job, model: ModelShape) -> int:
    """Tokens of prompt and answer: as the job says, or of the usual ones what the model reads."""
    asked, positions = job.data.max_length, model.max_position_embeddings
    if not positions or asked <= positions:
        return asked
    if "max_length" not in job.data.model_fields_set:
        return positions
    reads = f"is {asked:,}, of prompt and answer together, and the model reads {positions:,}"
    raise UnsupportedError(f"data.max_length {reads}; ask for no more")


def _room(cluster: Cluster) -> int:
    return int(USABLE * cluster.num_gpus * (cluster.gpu.usable_bytes - cluster.gpu.context_bytes))


def _price(cluster: Cluster) -> tuple[float, int]:
    price = cluster.gpu.typical_usd_per_hour
    return (inf if price is None else price * cluster.num_gpus), cluster.num_gpus
