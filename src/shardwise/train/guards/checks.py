"""Checks in every training: ranks agree, replicas of a weight are bit-identical, the layout asked
for is what runs, numbers are finite."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from shardwise.data.digests import STRANGER, Sight, join, samples_seen
from shardwise.data.micro_batches import GlobalBatch
from shardwise.data.store import PreparedData
from shardwise.errors import ShardwiseError
from shardwise.models.load import local_window
from shardwise.parallel.mesh import World
from shardwise.parallel.optimizer.stepped import Stepped
from shardwise.parallel.ownership import Ownership, local_part, sharded_axes, sharded_dims
from shardwise.spec.layout.axes import dim_of_shard, rows_of_shard
from shardwise.units import format_ranks

T = TypeVar("T")


class GuardError(ShardwiseError):
    """A check failed; training stopped before weights were changed by it."""


def gather(world: World, value: T) -> list[T]:
    """One small object of every rank, by rank."""
    values: list[Any] = [None] * world.size
    dist.all_gather_object(values, value, group=world.control)
    return values


def agree(world: World, facts: dict[str, Any]) -> None:
    """Checks that ranks share facts (job, data, versions, layout). GuardError: first difference."""
    for rank, theirs in enumerate(gather(world, facts)):
        for name, mine in facts.items():
            if theirs.get(name) != mine:
                raise GuardError(
                    f"rank {rank} has {name} = {theirs.get(name)!r} and rank {world.rank} has {mine!r}; "
                    "all ranks must start from the same job, data and versions"
                )


def agree_on_model(world: World, content: dict[str, str]) -> None:
    """Compares the hashes of the model's files by name: one name may stand for two folders on two
    machines. The same GuardError on every rank names a file that differs."""
    everyone = gather(world, content)
    names = sorted({name for files in everyone for name in files})
    differing = [name for name in names if len({files.get(name) for files in everyone}) > 1]
    if not differing:
        return
    holders: dict[str | None, list[int]] = {}
    for rank, files in enumerate(everyone):
        holders.setdefault(files.get(differing[0]), []).append(rank)
    held = "; ".join(
        f"{format_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} "
        f"{'none' if file is None else f'one with hash {file[:8]}'}"
        for file, ranks in holders.items()
    )
    more = len(differing) - 1
    others = f" (and {more} other file{'s' if more > 1 else ''})" if more else ""
    raise GuardError(
        f"ranks read different models: of {differing[0]}{others}, {held}. Each would train its part of another model; "
        "copy one folder to every machine, or download it again"
    )


def check_layout(
    world: World, parameters: list[tuple[str, nn.Parameter]], *, ownership: Ownership, elements: dict[str, int]
) -> None:
    """Checks on live tensors that this rank holds its part of every weight, and all ranks each
    element once. Raises GuardError: the first weight that differs. `elements`: of whole weights."""
    counted = Counter[str]()
    for name, parameter in parameters:  # stages of one rank may hold the same name
        held = local_part(parameter).numel()
        _check_part(world, name, parameter, held=held, shards=world.layout.weight_shards)
        counted[name] += held if ownership.counts(name, parameter) else 0
    if world.layout.tp > 1 and not any(_sliced_dims(parameter) for _, parameter in parameters):
        raise GuardError(
            f"rank {world.rank} holds no slice of any weight; the layout is {world.layout.strategy}. What was asked is "
            "not what runs"
        )
    strangers = sum(count for name, count in counted.items() if name not in elements)
    expected_of = [*sorted(elements.items()), ("weights that the model does not have", 0)]
    # One exchange for all names, in an order that every rank has.
    everywhere = torch.tensor([*(counted[name] for name in sorted(elements)), strangers])
    dist.all_reduce(everywhere, group=world.control)
    for found, (name, expected) in zip(everywhere.tolist(), expected_of, strict=True):
        if found != expected:
            raise GuardError(
                f"all ranks together count {found} elements of {name}, and the model has {expected}. What was asked "
                "is not what runs"
            )


def check_trained(
    world: World, parameters: list[tuple[str, nn.Parameter]], *, ownership: Ownership, planned: int | None
) -> None:
    """Raises GuardError unless all ranks together train as many elements as the plan counts."""
    mine = sum(local_part(p).numel() for name, p in parameters if p.requires_grad and ownership.counts(name, p))
    trained = sum(gather(world, mine))
    if planned not in (None, trained):
        raise GuardError(
            f"all ranks together train {trained} elements, and the plan counts {planned}, so that its forecast is of "
            "another model. What was asked is not what runs; plan again with the model and the packages of this run"
        )


def _check_part(world: World, name: str, tensor: torch.Tensor, *, held: int, shards: int) -> None:
    """This rank must hold its place among `shards` of its slice of a tensor: `held` elements."""
    layout, at = world.layout, world.layout.coordinates(world.rank)
    shape = list(tensor.shape)
    for dim in _sliced_dims(tensor):
        shape[dim] = rows_of_shard(shape[dim], degree=layout.tp, index=at.tp)
    if world.expert_mesh is not None and "ep" in sharded_axes(tensor):
        dealt = world.expert_mesh["ep"].size()
        shape[0] //= dealt
        shards, index = max(1, shards // dealt), world.expert_mesh.get_local_rank("dp_mod_ep")
    else:
        index = layout.shard_of(world.rank)
    dim = dim_of_shard(tuple(shape), degree=shards) if layout.weight_shards > 1 else 0
    shape[dim] = rows_of_shard(shape[dim], degree=shards, index=index if shards > 1 else 0)
    expected = math.prod(shape)
    if held != expected:
        raise GuardError(
            f"rank {world.rank} holds {held} of the {tensor.numel()} elements of {name}; the layout "
            f"{layout.strategy} gives it {expected}. What was asked is not what runs"
        )


def read_back_states(optimizer: torch.optim.Optimizer, world: World, stepped: Stepped) -> None:
    """After step one, every optimizer state must cover this rank's rows; GuardError names one."""

    def check() -> None:
        for name, key, state, placed in stepped.states(optimizer):
            if state.ndim and len(placed) > 1:  # a count of steps has no rows, and Adafactor's mean over rows has one
                what = f"the optimizer's {key} of {name}"
                _check_part(world, what, placed, held=state.numel(), shards=world.layout.shard_degree)

    after_first_step(optimizer, check)


def after_first_step(optimizer: torch.optim.Optimizer, check: Callable[[], None]) -> None:
    """Calls something once, after the optimizer's first step, which creates its states."""
    waiting = [check]

    def call(*_: Any) -> None:
        if waiting:
            waiting.pop()()

    optimizer.register_step_post_hook(call)


def _sliced_dims(tensor: torch.Tensor) -> list[int]:
    """The dims along which tensor parallelism slices a tensor."""
    names = (tensor.device_mesh.mesh_dim_names or ()) if isinstance(tensor, DTensor) else ()
    return [dim for axis, dim in sharded_dims(tensor).items() if names[axis] == "tp"]


def check_sights(world: World, batch: GlobalBatch, data: PreparedData, sights: Sequence[Sight]) -> None:
    """Checks that ranks saw all of the batch, each its share, peers the same. `sights` by rank."""
    check_peers(world, batch, [sight.checksum for sight in sights])
    shares = {world.layout.data_rank(rank): sight.seen for rank, sight in enumerate(sights)}
    if {sight.asked for sight in sights} != {join(list(shares.values()))}:
        check_batches(world, batch, data)


def check_peers(world: World, batch: GlobalBatch, checksums: Sequence[int]) -> None:
    """Checks by checksums that tensor, pipeline and context parallel peers see the same rows."""
    shares: dict[int, tuple[int, int]] = {}
    for rank, checksum in enumerate(checksums):
        other, known = shares.setdefault(world.layout.data_rank(rank), (rank, checksum))
        if checksum != known:
            raise GuardError(
                f"step {batch.step}: rank {other} and rank {rank} compute parts of the same forward and see different "
                "tokens. Ranks do not see the samples they should"
            )


def check_batches(world: World, batch: GlobalBatch, data: PreparedData) -> None:
    """Checks that ranks see different samples that together are the global batch."""
    everyone = gather(world, (samples_seen(batch, data), batch.sample_ids))
    asked = sorted(everyone[0][1])
    shares = {world.layout.data_rank(rank): (rank, seen) for rank, (seen, _) in enumerate(everyone)}
    seen = sorted(sample for _, share in shares.values() for sample in share)
    if seen != asked or any(sorted(other) != asked for _, other in everyone):
        known = set(asked)
        others = [(rank, sample) for rank, share in shares.values() for sample in share if sample not in known]
        stray = ""
        if others:
            (rank, sample), *_ = others
            row = "a row that is not the sample it is said to be"
            stray = f"; rank {rank} sees {row if sample == STRANGER else f'sample {sample}, not one of them'}"
        raise GuardError(
            f"step {batch.step}: {len(shares)} shares of the batch hold {len(seen)} samples, {len(set(seen))} of them "
            f"different; the global batch has {len(asked)}{stray}. Ranks do not see the samples they should"
        )


def check_finite(world: World, *, step: int, loss: float, norm: float, bad_sample: Any, where: Any) -> None:
    """Raises GuardError before the optimizer step if loss or gradient norm is not finite.
    `bad_sample`: gives this rank's sample id or None; `where`: sample id -> `file:line`."""
    if math.isfinite(loss) and math.isfinite(norm):
        return
    # Every rank looks: the loss is a sum over all, and does not say whose rows spoiled it.
    culprits = [(rank, sample) for rank, sample in enumerate(gather(world, bad_sample())) if sample is not None]
    culprit = culprits[0] if culprits else None
    source = f" on rank {culprit[0]} in the sample from {where(culprit[1])}" if culprit else ""
    what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient norm is {norm}"
    at = "that row" if culprit else "the model, as no sample has a loss of its own that is not finite"
    first = f"look at {at}" + (", or at the model" if culprit else "")
    remedy = first if step == 1 else f"lower train.learning_rate, or look at {at}"
    raise GuardError(f"step {step}: {what}{source}. The weights are those of step {step - 1}; {remedy}")


#: Replicas are compared every so many steps; all of them at the start and before every save.
REPLICA_CHECK_STEPS = 200

#: Words that are hashed at once; takes 16 MiB of the device.
CHUNK_WORDS = 2**20

_WHOLE_TYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Part = tuple[str, tuple[int, ...], tuple[int, ...]]
"""A weight's name, where in it a part begins, and how far it goes, by dim."""


def check_replicas(world: World, parameters: Sequence[tuple[str, nn.Parameter]], *, when: str) -> None:
    """Compares bytes of replicated parts; the same GuardError on every rank, begun by `when`."""
    if world.layout.world_size == world.layout.weight_shards:
        return  # every part is held once
    trained = {name for name, parameter in parameters if parameter.requires_grad}
    known: dict[Part, tuple[int, int]] = {}
    for rank, hashes in enumerate(gather(world, (trained, part_hashes(parameters)))):
        trained |= hashes[0]
        for part, value in hashes[1].items():
            other, first = known.setdefault(part, (rank, value))
            if value != first:
                kind = "trained" if part[0] in trained else "frozen"
                harm = "train its own model" if kind == "trained" else "train for a model of its own"
                raise GuardError(
                    f"{when}: rank {other} and rank {rank} hold different {kind} weights in {part[0]}, though they are "
                    f"replicas; the run was stopped because each would {harm}"
                )


def part_hashes(parameters: Sequence[tuple[str, nn.Parameter]]) -> dict[Part, int]:
    """Each part this rank holds -> a hash of its bits, modulo 2**64: the sum of words times odd
    numbers of their positions. Any changed word changes it; device and order do not matter."""
    words = [bits(local_part(parameter)) for _, parameter in parameters]
    if not words:
        return {}
    multipliers = _odd_numbers(min(CHUNK_WORDS, max(part.numel() for part in words)), device=words[0].device)
    hashes = torch.stack([_hash(part, multipliers) for part in words]).tolist()
    return dict(zip([(name, *local_window(parameter)) for name, parameter in parameters], hashes, strict=True))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor's elements as flat integers."""
    return tensor.contiguous().flatten().view(_WHOLE_TYPES[tensor.element_size()])


def _hash(words: torch.Tensor, multipliers: torch.Tensor) -> torch.Tensor:
    """Words of a chunk by their positions, chunks by theirs; a scalar on the words' device."""
    chunks = [(chunk * multipliers[: len(chunk)]).sum(dtype=torch.int64) for chunk in words.split(CHUNK_WORDS)]
    return (torch.stack(chunks) * _odd_numbers(len(chunks), start=2**40, device=words.device)).sum()


def _odd_numbers(count: int, *, device: torch.device, start: int = 0) -> torch.Tensor:
    """Odd pseudo-random int64, shape [count], from index `start` on."""
    scattered = torch.arange(start, start + count, dtype=torch.int64, device=device) * 0x1E3779B97F4A7C15
    scattered = (scattered ^ (scattered >> 29)) * 0x3F58476D1CE4E5B9
    return (scattered ^ (scattered >> 32)) | 1
