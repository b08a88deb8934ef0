"""Every parameter tensor of a job, by unit: a block of each kind, and what is outside blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from shardwise.plan.work import adapters
from shardwise.plan.work.tensors import NF4_BYTES, DtypeBytes, Place, Tensor
from shardwise.spec.adapters.targets import Hold, hold_of
from shardwise.spec.job.keys import Job, LoraSpec, Method
from shardwise.spec.model.shape import Cut, Matrix, ModelShape, Norm
from shardwise.spec.support.rows import in_nf4, nf4_scale_bytes

_OTHER_DIM: dict[Cut, Cut] = {"rows": "columns", "columns": "rows"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Unit:
    """Tensors gathered and reduced together. Compared by identity, so that results are cached."""

    tensors: tuple[Tensor, ...]

    @cached_property
    def elements(self) -> int:
        """Elements of the unit."""
        return sum(tensor.elements for tensor in self.tensors)

    @cached_property
    def trained_elements(self) -> int:
        """Elements that have gradients."""
        return sum(tensor.elements for tensor in self.tensors if tensor.trained)

    def joined_elements(self, names: frozenset[str]) -> tuple[int, int]:
        """Elements of the A's and of the B's of adapters on matrices of these names."""
        a, b = (
            sum(t.elements for t in self.tensors if t.name.endswith(half) and t.name.removesuffix(half) in names)
            for half in (".lora_A", ".lora_B")
        )
        return a, b

    def gathered_bytes(self, types: DtypeBytes) -> float:
        """Bytes of the whole weights when gathered: still in NF4, or in the compute type."""
        quantised, packed = self._in_bytes
        return quantised * NF4_BYTES + packed + (self.elements - quantised - packed) * types.compute

    def stored_bytes(self, types: DtypeBytes) -> float:
        """Bytes of the whole weights in the types that they are stored in, without scales."""
        return sum(tensor.elements * tensor.element_bytes(types) for tensor in self.tensors)

    @cached_property
    def _in_bytes(self) -> tuple[int, int]:
        quantised, packed = ([t.elements for t in self.tensors if getattr(t, how)] for how in ("quantised", "packed"))
        return sum(quantised), sum(packed)

    @cached_property
    def largest_trained(self) -> int:
        """Elements of the largest tensor with a gradient, 0 where there is none."""
        return max((t.rows * t.columns for t in self.tensors if t.trained), default=0)

    def trained_of(self, names: frozenset[str]) -> tuple[int, int]:
        """Trained elements of these matrices, biases and adapters too: of the largest, of all."""
        of_matrix = (t for t in self.tensors if t.name in names or t.name.rpartition(".")[0] in names)
        found = [tensor.elements for tensor in of_matrix if tensor.trained]
        return max(found, default=0), sum(found)

    def sliced(self, *, degree: int, index: int) -> Unit:
        """What one tensor-parallel rank holds of it."""
        return Unit(tensors=tuple(tensor.sliced(degree=degree, index=index) for tensor in self.tensors))


@dataclass(frozen=True, kw_only=True, eq=False)
class Inventory:
    """All parameters of a job. Compared by identity, so that results can be cached. `blocks` is one
    decoder block of each kind with their number, `root` all that lies outside of blocks; matrices
    of blocks that carry adapters are `adapted` as modules or `bare` parameters, and `joined` where
    one function computes an adapted product (`methods/lora_products.py`)."""

    blocks: tuple[tuple[int, Unit], ...]
    root: Unit
    adapted: frozenset[str] = frozenset()
    bare: frozenset[str] = frozenset()
    joined: frozenset[str] = frozenset()
    trained_names: frozenset[str] = frozenset()
    tied: bool = False
    dora: bool = False

    @cached_property
    def num_blocks(self) -> int:
        """Blocks of all kinds."""
        return sum(count for count, _ in self.blocks)

    @cached_property
    def block(self) -> Unit:
        """The largest block: what a buffer for one of them must hold."""
        return max((unit for _, unit in self.blocks), key=lambda unit: unit.elements)

    @cached_property
    def units(self) -> tuple[tuple[int, Unit], ...]:
        """One block of each kind with their number, and what lies outside of blocks."""
        return (*self.blocks, (1, self.root))

    @property
    def tensors(self) -> Iterator[Tensor]:
        """The tensors of one block of each kind, and those outside of blocks."""
        return (tensor for _, unit in self.units for tensor in unit.tensors)

    @cached_property
    def ranks(self) -> dict[str, int]:
        """Columns between the halves of adapters, by the names of matrices."""
        tensors = [tensor for _, unit in self.blocks for tensor in unit.tensors]
        halves = (t for t in reversed(tensors) if t.name.endswith(".lora_A"))
        return {half.name.removesuffix(".lora_A"): half.rows for half in halves}

    def over_blocks(self, of: Callable[[Unit], float]) -> float:
        """The sum of some number over all blocks."""
        return sum(count * of(unit) for count, unit in self.blocks)

    def over_all(self, of: Callable[[Unit], float]) -> float:
        """The same, and of what lies outside of blocks."""
        return self.over_blocks(of) + of(self.root)

    def of_mean_block(self, of: Callable[[Unit], float]) -> float:
        """The mean of it over blocks; 0 where there are none."""
        return self.over_blocks(of) / max(1, self.num_blocks)

    @cached_property
    def trained_of_blocks(self) -> int:
        """Elements of all blocks that have gradients."""
        return sum(count * unit.trained_elements for count, unit in self.blocks)

    @cached_property
    def trained_elements(self) -> int:
        """Elements that have gradients."""
        return self.trained_of_blocks + self.root.trained_elements

    @cached_property
    def ends(self) -> tuple[Unit, Unit]:
        """What FSDP gathers by itself outside the blocks: the embedding, and final norm with head.
        Both are empty where these share a weight: all is the root's then."""

        def starting(*names: str) -> Unit:
            return Unit(tensors=tuple(t for t in self.root.tensors if not self.tied and t.name.startswith(names)))

        return starting("embedding", "saved.embedding"), starting("final_norm", "head", "saved.head")

    @property
    def head_name(self) -> str:
        """The tensor that the head reads: PEFT's copy of it, its own, or the embedding."""
        return "saved.head" if self.trained("saved.head") else "embedding" if self.tied else "head"

    @property
    def embedding_name(self) -> str:
        """The tensor that tokens are looked up in: PEFT's copy of it, or its own."""
        return "saved.embedding" if self.trained("saved.embedding") else "embedding"

    def trained(self, name: str) -> bool:
        """Whether the tensor of that name (a matrix's or norm's, no `.bias`) has a gradient."""
        return name in self.trained_names

    def sliced(self, *, degree: int, index: int) -> Inventory:
        """What one tensor-parallel rank holds; slices are adapted by PEFT's own code."""
        if degree == 1:
            return self
        blocks = tuple((count, unit.sliced(degree=degree, index=index)) for count, unit in self.blocks)
        return replace(self, blocks=blocks, root=self.root.sliced(degree=degree, index=index), joined=frozenset())

    def dealt(self, ep: int) -> Inventory:
        """What one rank holds where experts are dealt among ranks."""
        if ep == 1:
            return self
        units = ((count, Unit(tensors=tuple(t.dealt(ep) for t in unit.tensors))) for count, unit in self.blocks)
        return replace(self, blocks=tuple(units))

    def staged(self, counts: Iterable[int], *, is_first: bool, is_last: bool) -> Inventory:
        """What a pipeline rank holds: blocks of each kind, and its ends (tied embedding: both)."""
        blocks = tuple((count, unit) for count, (_, unit) in zip(counts, self.blocks, strict=True))

        def is_here(tensor: Tensor) -> bool:
            shared = self.tied and tensor.name == "embedding"
            return (is_last and (shared or tensor.place == "back")) or (is_first and tensor.place == "front")

        root = Unit(tensors=tuple(tensor for tensor in self.root.tensors if is_here(tensor)))
        return replace(self, blocks=blocks, root=root)


class Outer(NamedTuple):
    """What a pipeline stage holds beside its blocks: all of it; the embedding, in the first; the
    final norm with the head, in the last; and all but these two."""

    whole: Unit
    embedding: Unit
    head: Unit
    rest: Unit


@lru_cache(maxsize=256)
def outer(inventory: Inventory, is_first: bool, is_last: bool) -> Outer:
    """What the stage that is the first, the last, both or neither holds."""
    whole = inventory.staged([count for count, _ in inventory.blocks], is_first=is_first, is_last=is_last).root
    embedding, head = ([t for t in whole.tensors if t in end.tensors] for end in inventory.ends)
    rest = [tensor for tensor in whole.tensors if tensor not in head]
    return Outer(whole, *(Unit(tensors=tuple(part)) for part in (embedding, head, rest)))


def take_inventory(job: Job, model: ModelShape) -> Inventory:
    """A job's parameters. Raises UnsupportedError: LoRA without a forecast, or unknown targets."""
    # As text, for a cache: pydantic's models have no hash.
    lora = None if job.adapters is None else job.adapters.model_dump_json()
    return _taken(model, job.method, lora, experts=job.quantises_experts)


@lru_cache(maxsize=8)
def _taken(model: ModelShape, method: Method, adapted_by: str | None, *, experts: bool) -> Inventory:
    lora = None if adapted_by is None else LoraSpec.model_validate_json(adapted_by)
    if lora is not None:
        adapters.refuse_unforecast(model, lora)
    blocks = tuple((kind.num_layers, _block(kind, method, lora, experts=experts)) for kind in model.kinds)
    root = list(_root(model, method=method))
    held: dict[str, Hold | None] = {}
    if lora is not None:
        held = {m.name: hold_of(m, lora, kind) for kind in model.kinds for m in kind.matrices}
        for matrix in model.outer_matrices:
            if hold_of(matrix, lora, model):
                place = _outer_place(matrix.name, model)
                root += [replace(t, place=place) for t in adapters.adapter_tensors(matrix, lora, model=model, cut=None)]
        root += adapters.adapters_outside(model, lora)
        adapters.check_targets(model, lora, found=any(held.values()) or any(tensor.trained for tensor in root))
        root += [*adapters.copies_outside(root, model, lora)]
    adapted = frozenset(name for name, hold in held.items() if hold == "module")
    plain = lora is not None and not lora.use_dora and not lora.lora_dropout
    turned = {m.name for kind in model.kinds for m in kind.matrices if m.transposed}
    # Products are joined where nothing comes between them: no DoRA, dropout or Conv1D.
    joined = adapted - turned if plain else frozenset[str]()
    made = Inventory(blocks=blocks, root=Unit(tensors=tuple(root)))
    return replace(
        made,
        adapted=adapted,
        bare=frozenset(name for name, hold in held.items() if hold == "bare"),
        joined=joined,
        trained_names=frozenset(tensor.name.removesuffix(adapters.COPY) for tensor in made.tensors if tensor.trained),
        tied=model.tied,
        dora=lora is not None and lora.use_dora,
    )


def _block(kind: ModelShape, method: Method, lora: LoraSpec | None, *, experts: bool) -> Unit:
    tensors: list[Tensor] = []
    for matrix in kind.matrices:
        tensors += _matrix(matrix, method=method, cut=matrix.sliced_by, experts=experts)
    unlisted = Norm(name="norms", size=kind.norm_parameters_per_layer, width=kind.hidden_size)
    # A norm over all heads is sliced with what it reads.
    read = {f"{m.name.removesuffix('_proj')}_norm": m.rows for m in kind.matrices if m.sliced_by == "rows"}
    norms = _norms(kind.norms or (unlisted,), method=method)
    tensors += [replace(one, cut="rows" if read.get(one.name) == one.rows else None) for one in norms]
    if lora is not None:
        tensors += [*adapters.copies(tensors, lora)]
        for matrix in kind.matrices:
            if hold_of(matrix, lora, kind):
                tensors += adapters.adapter_tensors(matrix, lora, model=kind, cut=matrix.sliced_by)
    return Unit(tensors=tuple(tensors))


def _matrix(m: Matrix, *, method: Method, cut: Cut | None, experts: bool = False) -> Iterator[Tensor]:
    """The weight of a matrix, and its bias. `experts`: stacked ones are quantised."""
    trained = method == "full"
    rows, columns = (m.columns, m.rows) if m.transposed else (m.rows, m.columns)
    whole = Tensor(name=m.name, rows=rows, columns=columns, trained=trained)
    if m.stacked and in_nf4(m, experts=experts):
        for name, width in ((m.name, rows * columns // 2), (f"{m.name}.scales", nf4_scale_bytes(rows * columns))):
            stack = Tensor(name=name, rows=m.count, columns=width, trained=False, packed=True, last=width)
            yield replace(stack, cut=cut and "rows")
    elif m.stacked:  # the first dim counts the experts
        yield replace(whole, rows=m.count, columns=rows * columns, last=columns, cut=cut and "rows")
    else:
        # Conv1D stores a weight the other way round, in which its cut is the other dim.
        stored = cut and (_OTHER_DIM[cut] if m.transposed else cut)
        # Linear modules are quantised; a bare parameter stays as it is.
        yield replace(whole, quantised=method == "qlora" and m.adaptable, count=m.count, cut=stored)
    if m.bias:
        of_bias: Cut | None = "rows" if cut in ("rows", "count") else None
        bias = Tensor(name=f"{m.name}.bias", rows=m.rows, trained=trained, count=m.count, cut=of_bias)
        yield replace(bias, rows=m.count, columns=m.rows, count=1) if m.stacked else bias


def _outer_place(name: str, model: ModelShape) -> Place:
    """OPT's projections, of a shape known without a build, lead into the stream and out of it."""
    name = name.removesuffix(".bias")
    return "back" if name.endswith("_out") or name in model.behind else "front"


def _norms(norms: Iterable[Norm], *, method: Method) -> Iterator[Tensor]:
    for norm in norms:
        if not norm.size:
            continue
        trained = method == "full" and not norm.frozen
        yield Tensor(name=norm.name, rows=norm.size, trained=trained, count=norm.count)
        if norm.bias:
            yield Tensor(name=f"{norm.name}.bias", rows=norm.size, trained=trained, count=norm.count)


def _root(model: ModelShape, *, method: Method) -> Iterator[Tensor]:
    width, embedded = model.hidden_size, model.embedding_width

    def tensor(name: str, rows: int, columns: int = 1, *, cut: Cut | None = None, place: Place = "front") -> Tensor:
        return Tensor(name=name, rows=rows, columns=columns, trained=method == "full", cut=cut, place=place)

    yield tensor("embedding", model.vocab_size, embedded, cut="rows")
    matrices = (part for matrix in model.outer_matrices for part in _matrix(matrix, method=method, cut=None))
    for part in (*matrices, *_norms(model.outer_norms, method=method)):
        yield replace(part, place=_outer_place(part.name, model))
    if model.position_parameters:
        yield tensor("positions", model.position_parameters // width, width)
    for index in range(model.final_norm_parameters // width):
        yield tensor("final_norm.bias" if index else "final_norm", width, place="back")
    if not model.tied:
        yield tensor("head", model.vocab_size, embedded, cut="rows", place="back")
    if model.head_bias:
        yield tensor("head.bias", model.vocab_size, cut="rows", place="back")
