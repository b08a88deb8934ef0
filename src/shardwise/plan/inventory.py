"""Every parameter tensor of a job by unit: what one block holds, and what lies outside the blocks.

Sharding cuts each tensor along its first dim, so bytes per rank need the tensors and not their sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shardwise.errors import UnsupportedError
from shardwise.plan.types import Types
from shardwise.spec.flops import is_target
from shardwise.spec.job import Job, LoraSpec, Method
from shardwise.spec.model import Matrix, ModelShape

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
        block: one decoder block; there are `num_blocks` of them.
        root: embedding, positions, final norm and head.
        adapted: names of the block's matrices that carry an adapter.
        trained_names: names of all tensors that have gradients.
    """

    num_blocks: int
    block: Unit
    root: Unit
    adapted: frozenset[str] = frozenset()
    trained_names: frozenset[str] = frozenset()

    @property
    def elements(self) -> int:
        """Elements of everything, adapters included."""
        return self.num_blocks * self.block.elements + self.root.elements

    @property
    def trained_elements(self) -> int:
        """Elements that have gradients."""
        return self.num_blocks * self.block.trained_elements + self.root.trained_elements

    def trained(self, name: str) -> bool:
        """Whether the tensor of that name (a matrix's or norm's own, without `.bias`) has a gradient."""
        return name in self.trained_names


def take_inventory(job: Job, model: ModelShape) -> Inventory:
    """Lists the parameters of a job.

    Raises:
        UnsupportedError: LoRA settings that no forecast is made for, or targets that the model does not have.
    """
    lora = job.adapters
    trained = lora is None
    block = [*_matrices(model, method=job.method), *_norms(model, trained=trained)]
    root = list(_root(model, trained=trained))
    adapted: list[Matrix] = []
    if lora is not None:
        _refuse_unforecast(lora)
        adapted = [matrix for matrix in model.matrices if is_target(matrix, lora.target_modules)]
        block += [tensor for matrix in adapted for tensor in _adapter(matrix, lora.r)]
        root += _root_additions(model, lora)
        _check_targets(model, lora, found=bool(adapted) or any(tensor.trained for tensor in root))
    return Inventory(
        num_blocks=model.num_layers,
        block=Unit(tensors=tuple(block)),
        root=Unit(tensors=tuple(root)),
        adapted=frozenset(matrix.name for matrix in adapted),
        trained_names=frozenset(tensor.name for tensor in (*block, *root) if tensor.trained),
    )


def _matrices(model: ModelShape, *, method: Method) -> Iterator[Tensor]:
    trained, quantised = method == "full", method == "qlora"
    for m in model.matrices:
        rows, columns = (m.columns, m.rows) if m.transposed else (m.rows, m.columns)
        yield Tensor(name=m.name, rows=rows, columns=columns, trained=trained, quantised=quantised, count=m.count)
        if m.bias:
            yield Tensor(name=f"{m.name}.bias", rows=m.rows, trained=trained, count=m.count)


def _norms(model: ModelShape, *, trained: bool) -> Iterator[Tensor]:
    if not model.norms:
        yield Tensor(name="norms", rows=model.norm_parameters_per_layer, trained=trained)
    for norm in model.norms:
        yield Tensor(name=norm.name, rows=norm.size, trained=trained, count=norm.count)
        if norm.bias:
            yield Tensor(name=f"{norm.name}.bias", rows=norm.size, trained=trained, count=norm.count)


def _root(model: ModelShape, *, trained: bool) -> Iterator[Tensor]:
    width = model.hidden_size
    yield Tensor(name="embedding", rows=model.vocab_size, columns=width, trained=trained)
    if model.position_parameters:
        yield Tensor(name="positions", rows=model.position_parameters // width, columns=width, trained=trained)
    for index in range(model.final_norm_parameters // width):
        yield Tensor(name="final_norm.bias" if index else "final_norm", rows=width, trained=trained)
    if not model.tied:
        yield Tensor(name="head", rows=model.vocab_size, columns=width, trained=trained)
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
    vocab, width = model.vocab_size, model.hidden_size
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


def _check_targets(model: ModelShape, lora: LoraSpec, *, found: bool) -> None:
    if not found:
        names = ", ".join(dict.fromkeys(matrix.name.rpartition(".")[2] for matrix in model.matrices))
        raise UnsupportedError(
            f"lora.target_modules is {lora.target_modules!r}, which names no matrix of this model; it has {names}"
        )
