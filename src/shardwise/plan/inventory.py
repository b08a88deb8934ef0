"""Every parameter tensor of a job by unit: what one block holds, and what lies outside the blocks.

Sharding cuts each tensor along its first dim, so bytes per rank need the tensors and not their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from shardwise.errors import UnsupportedError
from shardwise.plan.types import Types
from shardwise.spec.flops import is_target
from shardwise.spec.job import Job, LoraSpec, Method
from shardwise.spec.model import Matrix, ModelShape, Norm

#: NF4 with double quantisation (Dettmers et al., 2023): half a byte per element, one byte of scale per block of 64, and
#: a float32 per 256 of those.
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)

_EMBEDDING_NAMES = frozenset({"embed_tokens", "wte", "embed_in"})
_HEAD_NAMES = frozenset({"lm_head", "embed_out"})


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One parameter.

    Attributes:
        rows: its first dim, along which it is sharded.
        columns: elements per row.
        trained: it has a gradient.
        quantised: it is stored in NF4.
        count: how many alike there are.
    """

    name: str
    rows: int
    columns: int = 1
    trained: bool = True
    quantised: bool = False
    count: int = 1

    @property
    def elements(self) -> int:
        """Elements of all `count` tensors."""
        return self.count * self.rows * self.columns

    def stored_bytes(self, types: Types) -> float:
        """Bytes of one element in storage."""
        if self.quantised:
            return NF4_BYTES
        return types.trainable if self.trained else types.frozen


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Tensors that are gathered and reduced together."""

    tensors: tuple[Tensor, ...]

    @property
    def elements(self) -> int:
        """Elements of the unit."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def trained_elements(self) -> int:
        """Elements that have gradients."""
        return sum(tensor.elements for tensor in self.tensors if tensor.trained)

    def largest_trained(self) -> int:
        """Elements of the largest tensor with a gradient, 0 where there is none."""
        return max((t.rows * t.columns for t in self.tensors if t.trained), default=0)


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """All parameters of a job.

    Attributes:
        blocks: one decoder block of each kind, with how many of them there are.
        root: embedding, positions, final norm, head, and what else lies outside the blocks.
        adapted: names of the blocks' matrices that carry an adapter.
        trained_names: names of all tensors that have gradients.
    """

    blocks: tuple[tuple[int, Unit], ...]
    root: Unit
    adapted: frozenset[str] = frozenset()
    trained_names: frozenset[str] = frozenset()

    @property
    def num_blocks(self) -> int:
        """Blocks of all kinds."""
        return sum(count for count, _ in self.blocks)

    @cached_property
    def block(self) -> Unit:
        """The largest block: what a buffer for one of them must hold."""
        return max((unit for _, unit in self.blocks), key=lambda unit: unit.elements)

    def block_tensors(self) -> Iterator[Tensor]:
        """The tensors of one block of each kind."""
        for _, unit in self.blocks:
            yield from unit.tensors

    def over_blocks(self, of: Callable[[Unit], float]) -> float:
        """The sum of some number over all blocks."""
        return sum(count * of(unit) for count, unit in self.blocks)

    @property
    def elements(self) -> int:
        """Elements of everything, adapters included."""
        return sum(count * unit.elements for count, unit in self.blocks) + self.root.elements

    @property
    def trained_elements(self) -> int:
        """Elements that have gradients."""
        return sum(count * unit.trained_elements for count, unit in self.blocks) + self.root.trained_elements

    def trained(self, name: str) -> bool:
        """Whether the tensor of that name (a matrix's or norm's own, without `.bias`) has a gradient."""
        return name in self.trained_names


def take_inventory(job: Job, model: ModelShape) -> Inventory:
    """Lists the parameters of a job.

    Raises:
        UnsupportedError: LoRA settings that no forecast is made for, or targets that the model does not have.
    """
    lora = job.adapters
    blocks = tuple((kind.num_layers, _block(kind, job)) for kind in model.kinds)
    root = list(_root(model, method=job.method))
    adapted: list[Matrix] = []
    if lora is not None:
        _refuse_unforecast(lora)
        _refuse_experts(model, lora)
        adapted = [m for kind in model.kinds for m in kind.matrices if is_target(m, lora.target_modules)]
        outer = [matrix for matrix in model.outer_matrices if is_target(matrix, lora.target_modules)]
        root += [tensor for matrix in outer for tensor in _adapter(matrix, lora.r)]
        root += _root_additions(model, lora)
        _check_targets(model, lora, found=bool(adapted) or any(tensor.trained for tensor in root))
    tensors = [*(tensor for _, block in blocks for tensor in block.tensors), *root]
    return Inventory(
        blocks=blocks,
        root=Unit(tensors=tuple(root)),
        adapted=frozenset(matrix.name for matrix in adapted),
        trained_names=frozenset(tensor.name for tensor in tensors if tensor.trained),
    )


def _block(kind: ModelShape, job: Job) -> Unit:
    """The tensors of one block, adapters included."""
    lora = job.adapters
    tensors = [*_matrices(kind.matrices, method=job.method), *_norms(kind, trained=lora is None)]
    if lora is not None:
        adapted = (matrix for matrix in kind.matrices if is_target(matrix, lora.target_modules))
        tensors += [tensor for matrix in adapted for tensor in _adapter(matrix, lora.r)]
    return Unit(tensors=tuple(tensors))


def _matrices(matrices: Iterable[Matrix], *, method: Method) -> Iterator[Tensor]:
    trained = method == "full"
    for m in matrices:
        rows, columns = (m.columns, m.rows) if m.transposed else (m.rows, m.columns)
        if m.stacked:
            yield Tensor(name=m.name, rows=m.count, columns=rows * columns, trained=trained)
        else:
            # bitsandbytes puts its own linear modules in the place of others; a bare parameter stays as it is.
            quantised = method == "qlora" and m.adaptable
            yield Tensor(name=m.name, rows=rows, columns=columns, trained=trained, quantised=quantised, count=m.count)
        if m.bias:
            shape = (m.count, m.rows, 1) if m.stacked else (m.rows, 1, m.count)
            yield Tensor(name=f"{m.name}.bias", rows=shape[0], columns=shape[1], trained=trained, count=shape[2])


def _norms(model: ModelShape, *, trained: bool) -> Iterator[Tensor]:
    if not model.norms:
        yield Tensor(name="norms", rows=model.norm_parameters_per_layer, trained=trained)
    yield from _tensors_of_norms(model.norms, trained=trained)


def _tensors_of_norms(norms: Iterable[Norm], *, trained: bool) -> Iterator[Tensor]:
    for norm in norms:
        if not norm.size:
            continue
        yield Tensor(name=norm.name, rows=norm.size, trained=trained, count=norm.count)
        if norm.bias:
            yield Tensor(name=f"{norm.name}.bias", rows=norm.size, trained=trained, count=norm.count)


def _root(model: ModelShape, *, method: Method) -> Iterator[Tensor]:
    trained = method == "full"
    width, embedded = model.hidden_size, model.embedding_width
    yield Tensor(name="embedding", rows=model.vocab_size, columns=embedded, trained=trained)
    yield from _matrices(model.outer_matrices, method=method)
    yield from _tensors_of_norms(model.outer_norms, trained=trained)
    if model.position_parameters:
        yield Tensor(name="positions", rows=model.position_parameters // width, columns=width, trained=trained)
    for index in range(model.final_norm_parameters // width):
        yield Tensor(name="final_norm.bias" if index else "final_norm", rows=width, trained=trained)
    if not model.tied:
        yield Tensor(name="head", rows=model.vocab_size, columns=embedded, trained=trained)
    if model.head_bias:
        yield Tensor(name="head.bias", rows=model.vocab_size, trained=trained)


def _adapter(matrix: Matrix, r: int) -> Iterable[Tensor]:
    """A is r x columns, B is rows x r (Hu et al., 2021, section 4.1)."""
    return (
        Tensor(name=f"{matrix.name}.lora_A", rows=r, columns=matrix.columns, count=matrix.count),
        Tensor(name=f"{matrix.name}.lora_B", rows=matrix.rows, columns=r, count=matrix.count),
    )


def _root_additions(model: ModelShape, lora: LoraSpec) -> Iterator[Tensor]:
    """Adapters on the head, and whole copies that PEFT trains beside the frozen original."""
    named = [lora.target_modules] if isinstance(lora.target_modules, str) else lora.target_modules
    vocab, width = model.vocab_size, model.embedding_width
    if _HEAD_NAMES & set(named):
        yield Tensor(name="head.lora_A", rows=lora.r, columns=width)
        yield Tensor(name="head.lora_B", rows=vocab, columns=lora.r)
    for name in lora.modules_to_save:
        yield Tensor(name=f"saved.{'head' if name in _HEAD_NAMES else 'embedding'}", rows=vocab, columns=width)


def _refuse_unforecast(lora: LoraSpec) -> None:
    if lora.use_dora:
        raise UnsupportedError("lora.use_dora is not forecast by this version; set it to false")
    known = _EMBEDDING_NAMES | _HEAD_NAMES
    foreign = [name for name in lora.modules_to_save if name not in known]
    if foreign:
        raise UnsupportedError(
            f"lora.modules_to_save names {', '.join(foreign)}; forecasts are made for {', '.join(sorted(known))} only"
        )
    if not isinstance(lora.target_modules, str) and _EMBEDDING_NAMES & set(lora.target_modules):
        raise UnsupportedError(
            "an adapter on the embedding is not forecast by this version; leave it out of lora.target_modules"
        )


def _refuse_experts(model: ModelShape, lora: LoraSpec) -> None:
    """PEFT has rules of its own, by family and version, for what `all-linear` or a matrix of the MLP means there."""
    if not model.has_experts:
        return
    known = {m.name.rpartition(".")[2] for kind in model.kinds for m in kind.matrices if "attn" in m.name}
    named = [lora.target_modules] if isinstance(lora.target_modules, str) else lora.target_modules
    foreign = [name for name in named if name.rpartition(".")[2] not in known]
    if foreign:
        raise UnsupportedError(
            f"lora.target_modules names {', '.join(foreign)}, and {model.family} has experts; in such models forecasts "
            f"are made for adapters on attention only: {', '.join(sorted(known))}"
        )


def _check_targets(model: ModelShape, lora: LoraSpec, *, found: bool) -> None:
    if not found:
        names = ", ".join(
            dict.fromkeys(m.name.rpartition(".")[2] for k in model.kinds for m in k.matrices if m.adaptable)
        )
        raise UnsupportedError(
            f"lora.target_modules is {lora.target_modules!r}, which names no matrix of this model; it has {names}"
        )
