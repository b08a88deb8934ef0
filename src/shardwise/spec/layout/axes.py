"""Layout: how a job is spread over GPUs, and ranks to coordinates, for planner and trainer."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate, product
from math import prod
from typing import Any, Literal, Self

from shardwise.spec.job.strict import Whole

Schedule = Literal["1f1b", "gpipe", "interleaved", "zero_bubble", "sequential"]

#: From the outermost axis (neighbours are far apart) to the innermost (neighbours share a node):
#: the axes that talk most stand last, where the links are fastest.
AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")

#: The same ranks as experts are spread over them: the ranks of `ep` hold different experts, those
#: of `dp_mod_ep` shards or copies of the same ones, as torchtitan calls it.
EXPERT_AXES = ("pp", "dp_outer", "dp_mod_ep", "ep", "tp")

#: Stages of each pipeline rank, where a schedule has more than one.
_STAGES_PER_RANK: dict[Schedule, int] = {"interleaved": 2}

_STATES: dict[str, Any] = {"zero_stage": 1, "reshard_after_forward": False}
#: Names a user may write for `layout`, beside `auto` and axes -> the axis of all ranks, what else.
STRATEGIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mp": ("pp", {"schedule": "sequential"}),
    "ddp": ("dp_replicate", {}),
    "zero1": ("dp_shard", _STATES),
    "zero2": ("dp_shard", {**_STATES, "zero_stage": 2}),
    "fsdp": ("dp_shard", {}),
    "hsdp": ("dp_shard", {}),
    "tp": ("tp", {}),
    "pp": ("pp", {}),
    "cp": ("cp", {}),
}

#: The ways of a product in the order in which plans print them; of one line it has one at most.
_IN_PRODUCTS = (("ddp", "zero1", "zero2", "fsdp", "hsdp"), ("mp", "pp"), ("tp",), ("cp",))


def as_product(text: str) -> str:
    """A product of strategies, `tp x fsdp`, as plans print it: `fsdp x tp`; else ValueError."""
    ways = [way.strip() for way in text.split(" x ")]
    taken = [[way for way in ways if way in kind] for kind in _IN_PRODUCTS]
    if any(len(some) > 1 for some in taken) or sum(map(len, taken)) < len(ways):
        kinds = ", ".join(" or ".join(kind) for kind in _IN_PRODUCTS)
        raise ValueError(
            f"layout: {text} is no product of strategies, which has at most one of each: {kinds}; degrees of other "
            "axes are written below layout, such as dp_shard: 4 and ep: 2"
        )
    return " x ".join(way for some in taken for way in some)


def stages_per_rank(schedule: Schedule) -> int:
    """How many stages each pipeline rank holds under a schedule."""
    return _STAGES_PER_RANK.get(schedule, 1)


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """A rank's place on each axis."""

    pp: int = 0
    dp_replicate: int = 0
    dp_shard: int = 0
    cp: int = 0
    tp: int = 0


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Degrees of each way of spreading the work; their product is the number of GPUs.

    Attributes:
        dp_replicate: copies of the weights that each see other samples (DDP, the outer axis of
            hybrid sharding).
        dp_shard: ranks over which one copy is sharded, each seeing other samples (ZeRO, FSDP).
        tp: ranks that hold slices of each matrix and see the same samples.
        pp: pipeline stages, each holding a span of layers.
        cp: ranks that hold parts of each sequence.
        shard_over_cp: ranks of cp share what dp_shard shards, on one axis of both; otherwise they
            hold copies of it.
        ep: ranks among which the experts are dealt; part of those that see different samples, or
            parts of them: of dp_shard and cp where one is above 1, otherwise of dp_replicate.
        zero_stage: what dp_shard shards: 1 optimizer states, 2 and gradients, 3 and weights.
        reshard_after_forward: free gathered weights between forward and backward (ZeRO-3) or keep
            them.
        schedule: order of micro-batches through pipeline stages; `sequential` is naive model
            parallel.
        min_num_params: neighbouring blocks are gathered and reduced together until they hold so
            many parameters (Accelerate's `fsdp_min_num_params`); 0 makes each block a unit.
        prefetch: units that are gathered ahead of the one at work; 1 is FSDP2's own.
    """

    dp_replicate: Whole = 1
    dp_shard: Whole = 1
    tp: Whole = 1
    pp: Whole = 1
    cp: Whole = 1
    ep: Whole = 1
    zero_stage: Literal[1, 2, 3] = 3
    reshard_after_forward: bool = True
    schedule: Schedule = "1f1b"
    min_num_params: int = 0
    prefetch: Whole = 1
    shard_over_cp: bool = True

    def __post_init__(self) -> None:
        for axis in (*AXES, "ep"):
            degree = getattr(self, axis)
            if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
                raise ValueError(f"{axis} is {degree!r}; a degree is a whole number of at least 1")
        if self.zero_stage in (1, 2) and self.shard_degree > 1 and self.reshard_after_forward:
            raise ValueError(
                f"zero_stage {self.zero_stage} keeps gathered weights: reshard_after_forward must be false"
            )
        axes = self.shards_over if self.shard_degree > 1 else ("dp_replicate",)
        among = self.shard_degree if self.shard_degree > 1 else self.dp_replicate
        if among % self.ep:
            raise ValueError(
                f"ep = {self.ep} deals experts among ranks that see different samples, and does not divide "
                f"{' x '.join(axes)} = {among}"
            )

    @property
    def degrees(self) -> tuple[int, ...]:
        """Degrees in the order of `AXES`."""
        return tuple(getattr(self, axis) for axis in AXES)

    @property
    def world_size(self) -> int:
        """Number of ranks, one GPU each."""
        return self.pp * self.dp_replicate * self.dp_shard * self.cp * self.tp

    @cached_property
    def data_world_size(self) -> int:
        """Number of ranks that see different samples: only these count towards the global batch."""
        return self.dp_replicate * self.dp_shard

    @property
    def splits_rows(self) -> bool:
        """Whether ranks have parts of rows, and attention asks others for keys and values."""
        return self.cp > 1

    @property
    def ranks_per_row(self) -> int:
        """Ranks of a stage that see the same rows, or parts of them; neighbours, as `AXES` says."""
        return self.cp * self.tp

    @property
    def ranks_per_stage(self) -> int:
        """Ranks that hold the same blocks, or parts of them; neighbours, as `AXES` says."""
        return self.world_size // self.pp

    @property
    def expert_degrees(self) -> tuple[int, ...]:
        """Degrees in the order of `EXPERT_AXES`."""
        outer = self.copies if self.shard_degree > 1 else 1
        return self.pp, outer, self.data_world_size * self.cp // (outer * self.ep), self.ep, self.tp

    @cached_property
    def num_stages(self) -> int:
        """Pipeline stages of all ranks together."""
        return self.pp * stages_per_rank(self.schedule) if self.pp > 1 else 1

    def stages_of(self, pp: int) -> tuple[int, ...]:
        """The stages of one pipeline rank, dealt round robin."""
        return tuple(range(pp, self.num_stages, self.pp))

    @property
    def shards_states_only(self) -> bool:
        """Whether dp_shard ranks hold whole weights and gradients but sharded states (ZeRO-1)."""
        return self.shard_degree > 1 and self.zero_stage == 1

    @cached_property
    def weight_shards(self) -> int:
        """Over how many ranks one copy of the weights is cut between steps."""
        return 1 if self.shards_states_only else self.shard_degree

    @cached_property
    def shards_over(self) -> tuple[str, ...]:
        """The axes over which shards are cut: ranks with parts of a sequence share weights too."""
        return ("dp_shard", "cp") if self.cp > 1 and self.shard_over_cp else ("dp_shard",)

    @cached_property
    def copied_over(self) -> tuple[str, ...]:
        """The axes along which what is sharded has copies, whose gradients are added up."""
        return ("dp_replicate", "cp") if self.cp > 1 and not self.shard_over_cp else ("dp_replicate",)

    @cached_property
    def shard_degree(self) -> int:
        """Over how many ranks what is sharded is cut."""
        return prod(getattr(self, axis) for axis in self.shards_over)

    @property
    def copies(self) -> int:
        """How many copies there are of what is sharded."""
        return prod(getattr(self, axis) for axis in self.copied_over)

    def shard_of(self, rank: int) -> int:
        """Which of the `shard_degree` shares a rank has of what is sharded."""
        return self._place_on(self.shards_over, self.coordinates(rank))

    @property
    def fills_buckets(self) -> bool:
        """Whether DDP reduces gradients: weights are whole and only data differs between ranks."""
        return self.weight_shards == self.ep == 1 and self.world_size == self.data_world_size > 1

    @property
    def sequence_multiple(self) -> int:
        """Rows are padded to a multiple of this: under context parallelism a rank has two parts."""
        return self.tp * (2 * self.cp if self.cp > 1 else 1)

    def coordinates(self, rank: int) -> Coordinates:
        """The place of a rank; the last axis varies fastest. Raises ValueError: no such rank."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is outside the world of {self.world_size}")
        places: dict[str, int] = {}
        for axis in reversed(AXES):
            rank, places[axis] = divmod(rank, getattr(self, axis))
        return Coordinates(**places)

    def rank(self, coordinates: Coordinates) -> int:
        """The rank at a place; the inverse of `coordinates`."""
        return self._place_on(AXES, coordinates)

    def _place_on(self, axes: tuple[str, ...], at: Coordinates) -> int:
        """The number of a place among those on some axes; the last varies fastest."""
        place = 0
        for axis in axes:
            place = place * getattr(self, axis) + getattr(at, axis)
        return place

    def data_rank(self, rank: int) -> int:
        """Which of the `data_world_size` shares of each global batch this rank sees."""
        return self._place_on(("dp_replicate", "dp_shard"), self.coordinates(rank))

    @property
    def written(self) -> str:
        """The axes that do something: `dp_shard=4 tp=2`."""
        written = (f"{axis}={getattr(self, axis)}" for axis in (*AXES, "ep") if getattr(self, axis) > 1)
        return " ".join(written) or "one process"

    @cached_property
    def strategy(self) -> str:
        """This layout's name: `single`, `ddp`, `fsdp`, ..., or a product such as `fsdp x tp`."""
        pipeline = None if self.pp == 1 else "mp" if self.schedule == "sequential" else "pp"
        names = [name for name in (self._data_strategy(), pipeline) if name]
        names += [axis for axis in ("tp", "cp", "ep") if getattr(self, axis) > 1]
        return " x ".join(names) if names else "single"

    def _data_strategy(self) -> str | None:
        if self.shard_degree == 1:
            return "ddp" if self.dp_replicate > 1 else None
        if self.zero_stage < 3:
            return f"zero{self.zero_stage}"
        if self.dp_replicate > 1:
            return "hsdp"
        if self.dp_shard == 1 and self.reshard_after_forward:
            return None  # `cp` alone shards
        return "fsdp" if self.reshard_after_forward else "zero2"

    @classmethod
    def from_strategy(cls, name: str, *, world_size: int, gpus_per_node: int | None = None) -> Self:
        """The layout a strategy name means on `world_size` GPUs. Raises ValueError: the name is not
        one of `STRATEGIES`, or `hsdp` has no whole nodes to shard inside."""
        if name not in STRATEGIES:
            raise ValueError(f"{name!r} is not a strategy; the strategies are {', '.join(STRATEGIES)}")
        if world_size == 1:
            return cls()
        if name == "hsdp":
            inside = _hybrid_group(world_size, gpus_per_node=gpus_per_node)
            return cls(dp_replicate=world_size // inside, dp_shard=inside)
        axis, others = STRATEGIES[name]
        keys: dict[str, Any] = {axis: world_size, **others}
        return cls(**keys)

    def to_json(self) -> dict[str, Any]:
        """Plain data for plan.json."""
        return asdict(self)


def _hybrid_group(world_size: int, *, gpus_per_node: int | None) -> int:
    """Ranks in a group of hsdp: a node's, or half of one. Raises ValueError: one, or uneven."""
    node = gpus_per_node if gpus_per_node and gpus_per_node < world_size else None
    inside = node or world_size // 2
    if node == 1:
        raise ValueError(
            f"hsdp shards inside a node and replicates across nodes, and each of these {world_size} nodes has 1 GPU. "
            "Use fsdp, or nodes of at least 2 GPUs"
        )
    if inside < 2 or world_size % inside:
        wanted = f"a multiple of {inside} of them" if node else "an even number of them, 4 or more"
        raise ValueError(
            f"hsdp shards inside groups and replicates across them; {world_size} processes in groups of {inside} give "
            f"no such product. Use fsdp, or {wanted}"
        )
    return inside


def rows_of_shard(rows: int, *, degree: int, index: int) -> int:
    """Rows of one tensor on one rank, as `torch.chunk` gives them out."""
    chunk = -(-rows // degree)
    return max(0, min(chunk, rows - index * chunk))


def rows_of_parts(parts: tuple[Sequence[int], int], first: int, count: int) -> Iterator[tuple[int, int]]:
    """Where rows, in the order of slices, stand in the whole: the first and the number of each
    stretch. `parts`: the rows of each part, of which a slice has some, and how many slices."""
    sizes, degree = parts
    for index, (end, size) in product(range(degree), zip(accumulate(sizes), sizes, strict=True)):
        share = size // degree
        here, stop = max(first, 0), min(first + count, share)
        if here < stop:
            yield end - size + index * share + here, stop - here
        first -= share


def dim_of_shard(shape: tuple[int, ...], *, degree: int) -> int:
    """The dim that FSDP cuts: the first; for stacked experts, 1 or 2 where only that is even."""
    if len(shape) < 3 or shape[0] % degree == 0:
        return 0
    return next((dim for dim in (1, 2) if shape[dim] % degree == 0), 0)
