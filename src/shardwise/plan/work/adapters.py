"""The tensors that LoRA adds to a model, and the settings of it that no forecast is made for."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from shardwise.errors import UnsupportedError, quoted
from shardwise.plan.work.tensors import Tensor
from shardwise.spec.adapters.targets import (
    adapter_rank,
    adapter_refusals,
    half_named,
    hold_of,
    is_copied,
    is_saved,
    names_it,
)
from shardwise.spec.job.keys import LoraSpec
from shardwise.spec.model.shape import Cut, Matrix, ModelShape

#: Behind the name of a tensor that is trained as a copy.
COPY = ".saved"


def adapter_tensors(matrix: Matrix, lora: LoraSpec, *, model: ModelShape, cut: Cut | None) -> Iterator[Tensor]:
    """A is r x columns, B is rows x r (Hu et al., 2021); DoRA adds one magnitude per row (Liu et
    al., 2024). The half at the sliced dim is sliced too; stacked experts share whole A and B."""
    r, count = adapter_rank(matrix, lora, model), matrix.count
    if matrix.stacked:
        r, count, cut = r * count, 1, None
    of_a: Cut | None = "columns" if cut == "columns" else None
    of_b: Cut | None = "rows" if cut == "rows" else None
    yield Tensor(name=f"{matrix.name}.lora_A", rows=r, columns=matrix.columns, count=count, cut=of_a)
    yield Tensor(name=f"{matrix.name}.lora_B", rows=matrix.rows, columns=r, count=count, cut=of_b)
    if lora.use_dora:
        yield Tensor(name=f"{matrix.name}.magnitude", rows=matrix.rows, count=count, cut=of_b)


def adapters_outside(model: ModelShape, lora: LoraSpec) -> Iterator[Tensor]:
    """Adapters on the head."""
    named = [] if lora.target_modules == "all-linear" else lora.target_modules
    vocab, width, head = model.vocab_size, model.embedding_width, model.names.head
    if any(names_it(head, end) for end in named) and not is_saved(head, lora):
        yield Tensor(name="head.lora_A", rows=lora.r, columns=width, place="back")
        yield Tensor(name="head.lora_B", rows=vocab, columns=lora.r, cut="rows", place="back")
        if lora.use_dora:
            yield Tensor(name="head.magnitude", rows=vocab, cut="rows", place="back")


def copies_outside(root: Iterable[Tensor], model: ModelShape, lora: LoraSpec) -> Iterator[Tensor]:
    """Whole copies that PEFT trains of norms, embedding and head, beside the frozen originals."""
    names, rows, width = model.names, model.vocab_size, model.embedding_width
    called = {"final_norm": names.final_norm}
    called |= {norm.name: f"{names.backbone}.{norm.name}" for norm in model.outer_norms}
    yield from (_copy(tensor) for tensor in root if is_saved(called.get(tensor.name.removesuffix(".bias")), lora))
    if is_saved(names.embedding, lora):
        yield Tensor(name="saved.embedding", rows=rows, columns=width, cut="rows", place="front")
    if is_saved(names.head, lora):
        yield Tensor(name="saved.head", rows=rows, columns=width, cut="rows", place="back")
        if model.head_bias:
            yield Tensor(name="saved.head.bias", rows=rows, cut="rows", place="back")


def copies(tensors: Iterable[Tensor], lora: LoraSpec) -> Iterator[Tensor]:
    """Whole copies that PEFT trains of what is in a block; their originals stay, frozen."""
    yield from (_copy(tensor) for tensor in tensors if is_copied(tensor.name, lora.modules_to_save))


def _copy(tensor: Tensor) -> Tensor:
    return replace(tensor, name=f"{tensor.name}{COPY}", trained=True, quantised=False)


def refuse_unforecast(model: ModelShape, lora: LoraSpec) -> None:
    """Raises UnsupportedError for settings whose tensors are not known here."""
    for reason in adapter_refusals(model, lora):
        raise UnsupportedError(reason)
    _refuse_experts(model, lora)


def _refuse_experts(model: ModelShape, lora: LoraSpec) -> None:
    if not model.has_experts:
        return
    named = [] if isinstance(lora.target_modules, str) else lora.target_modules
    for given, missing in half_named(lora, model):
        raise UnsupportedError(
            f"lora.target_modules names {', '.join(given)} without {', '.join(missing)}, and in the experts of "
            f"{model.family} these are one parameter: name both, or neither"
        )
    bare = any(hold_of(m, lora, model) == "bare" for kind in model.kinds for m in kind.matrices)
    unlike = {"lora.lora_dropout above 0": lora.lora_dropout > 0, "lora.use_dora": lora.use_dora}
    asked = [name for name, is_asked in unlike.items() if is_asked]
    if bare and asked:
        attention = (m for kind in model.kinds for m in kind.matrices if "attn" in m.name and m.adaptable)
        raise UnsupportedError(
            f"lora.target_modules is {quoted(', '.join(named) or 'all-linear')}, which reaches the stacked experts of "
            f"{model.family}, where PEFT knows no {' and no '.join(asked)}: leave that out, or write "
            f"lora.target_modules: [{', '.join(dict.fromkeys(m.name.rpartition('.')[2] for m in attention))}]"
        )


def check_targets(model: ModelShape, lora: LoraSpec, *, found: bool) -> None:
    """Raises UnsupportedError where no adapter is left, which PEFT refuses too."""
    if found:
        return
    names = dict.fromkeys(m.name.rpartition(".")[2] for k in model.kinds for m in k.matrices if m.adaptable)
    if lora.target_modules and lora.modules_to_save:
        why = "and all that it names is trained as a copy by lora.modules_to_save, so that no adapter is left"
    else:
        why = "which names no matrix of this model"
    raise UnsupportedError(f"lora.target_modules is {quoted(lora.target_modules)}, {why}; it has {', '.join(names)}")
