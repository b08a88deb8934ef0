"""The tensors that LoRA adds to a model, and the settings of it that no forecast is made for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from shardwise.errors import UnsupportedError, quoted
from shardwise.plan.tensors import Tensor
from shardwise.spec.flops import HEAD_NAMES
from shardwise.spec.job import LoraSpec
from shardwise.spec.model import Cut, Matrix, ModelShape
from shardwise.spec.targets import adapter_rank, half_named, hidden_names, hold_of, is_copied

_EMBEDDING_NAMES = frozenset({"embed_tokens", "wte", "embed_in"})
_FINAL_NORM_NAMES = frozenset({"norm", "ln_f", "final_layernorm", "final_layer_norm"})
#: Behind the name of a tensor that is trained as a copy.
COPY = ".saved"


def adapter_tensors(matrix: Matrix, lora: LoraSpec, *, model: ModelShape, cut: Cut | None) -> Iterator[Tensor]:
    """A is r x columns, B is rows x r (Hu et al., 2021); DoRA adds one magnitude per row (Liu et al., 2024).

    Of the two halves, the one that touches the sliced dim of its matrix is sliced with it. Those of stacked experts
    stand side by side in one A and one B.
    """
    r, count = adapter_rank(matrix, lora, model), matrix.count
    if matrix.stacked:
        r, count = r * count, 1
    of_a: Cut | None = "columns" if cut == "columns" else None
    of_b: Cut | None = "rows" if cut == "rows" else None
    yield Tensor(name=f"{matrix.name}.lora_A", rows=r, columns=matrix.columns, count=count, cut=of_a)
    yield Tensor(name=f"{matrix.name}.lora_B", rows=matrix.rows, columns=r, count=count, cut=of_b)
    if lora.use_dora:
        yield Tensor(name=f"{matrix.name}.magnitude", rows=matrix.rows, count=count, cut=of_b)


def adapters_outside(model: ModelShape, lora: LoraSpec) -> Iterator[Tensor]:
    """Adapters on the head, and whole copies that PEFT trains beside the frozen original."""
    named = [lora.target_modules] if isinstance(lora.target_modules, str) else lora.target_modules
    vocab, width = model.vocab_size, model.embedding_width
    if HEAD_NAMES & set(named):
        yield Tensor(name="head.lora_A", rows=lora.r, columns=width, place="back")
        yield Tensor(name="head.lora_B", rows=vocab, columns=lora.r, cut="rows", place="back")
        if lora.use_dora:
            yield Tensor(name="head.magnitude", rows=vocab, cut="rows", place="back")
    for name in lora.modules_to_save:
        is_head = name in HEAD_NAMES
        if not is_head and name not in _EMBEDDING_NAMES:
            continue
        yield Tensor(
            name=f"saved.{'head' if is_head else 'embedding'}",
            rows=vocab,
            columns=width,
            cut="rows",
            place="back" if is_head else "front",
        )


def copies(tensors: Iterable[Tensor], lora: LoraSpec) -> Iterator[Tensor]:
    """Whole copies that PEFT trains of what is in a block, and of the final norm; their originals stay, frozen."""
    ends = _FINAL_NORM_NAMES & set(lora.modules_to_save)
    for tensor in tensors:
        final = tensor.name.startswith("final_norm")
        if ends if final else is_copied(tensor.name, lora.modules_to_save):
            yield replace(tensor, name=f"{tensor.name}{COPY}", trained=True, quantised=False, widened=False)


def refuse_unforecast(model: ModelShape, lora: LoraSpec) -> None:
    """Raises UnsupportedError for settings whose tensors are not known here."""
    known = _EMBEDDING_NAMES | HEAD_NAMES | _FINAL_NORM_NAMES
    inside = [part.name for kind in model.kinds for part in (*kind.matrices, *kind.norms)]
    named = [name for name in lora.modules_to_save if name not in known]
    foreign = [name for name in named if model.has_experts or not any(is_copied(part, [name]) for part in inside)]
    if foreign:
        whole = "" if model.has_experts else f", and for what is in a block: {', '.join(dict.fromkeys(inside))}"
        raise UnsupportedError(
            f"lora.modules_to_save names {', '.join(foreign)}; forecasts are made for {', '.join(sorted(known))}{whole}"
        )
    targets = [] if isinstance(lora.target_modules, str) else lora.target_modules
    embedding = [name for name in targets if name in _EMBEDDING_NAMES]
    if embedding:
        raise UnsupportedError(
            f"lora.target_modules names {', '.join(embedding)}, and an adapter on the embedding is not forecast by "
            "this version; leave it out, or name it in lora.modules_to_save, which trains a copy of it"
        )
    _refuse_experts(model, lora)


def _refuse_experts(model: ModelShape, lora: LoraSpec) -> None:
    """What PEFT does not do with stacked experts, and names of nothing."""
    if not model.has_experts:
        return
    named = [] if isinstance(lora.target_modules, str) else lora.target_modules
    unknown = [name for name in named if not _is_known(name, model)]
    if unknown:
        raise UnsupportedError(
            f"lora.target_modules names {', '.join(unknown)}, and no module of {model.family} is called so; in its "
            f"attention there are {', '.join(_attention(model))}"
        )
    for given, missing in half_named(lora, model):
        raise UnsupportedError(
            f"lora.target_modules names {', '.join(given)} without {', '.join(missing)}, and in the experts of "
            f"{model.family} these are one parameter: name both, or neither"
        )
    bare = any(hold_of(m, lora, model) == "bare" for kind in model.kinds for m in kind.matrices)
    unlike = {"lora.lora_dropout above 0": lora.lora_dropout > 0, "lora.use_dora": lora.use_dora}
    asked = [name for name, is_asked in unlike.items() if is_asked]
    if bare and asked:
        raise UnsupportedError(
            f"lora.target_modules is {quoted(', '.join(named) or 'all-linear')}, which reaches the stacked experts of "
            f"{model.family}, where PEFT knows no {' and no '.join(asked)}: leave that out, or write "
            f"lora.target_modules: [{', '.join(_attention(model))}]"
        )


def _attention(model: ModelShape) -> dict[str, None]:
    """Names of the modules of attention."""
    matrices = (m for kind in model.kinds for m in kind.matrices if "attn" in m.name and m.adaptable)
    return dict.fromkeys(m.name.rpartition(".")[2] for m in matrices)


def _is_known(name: str, model: ModelShape) -> bool:
    """Whether a target is the end of a module's name, or what PEFT calls a bare parameter."""
    matrices = (*(m for kind in model.kinds for m in kind.matrices), *model.outer_matrices)
    modules = [m.name for m in matrices if m.adaptable] + [*HEAD_NAMES, *_EMBEDDING_NAMES]
    bare = hidden_names(model)
    return name.rpartition(".")[2] in bare or any(one == name or one.endswith(f".{name}") for one in modules)


def check_targets(model: ModelShape, lora: LoraSpec, *, found: bool) -> None:
    """Raises UnsupportedError where the targets name nothing of the model."""
    if found:
        return
    names = dict.fromkeys(m.name.rpartition(".")[2] for k in model.kinds for m in k.matrices if m.adaptable)
    raise UnsupportedError(
        f"lora.target_modules is {quoted(lora.target_modules)}, which names no matrix of this model; it has "
        f"{', '.join(names)}"
    )
