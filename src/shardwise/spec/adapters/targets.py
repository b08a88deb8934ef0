"""Which matrices `lora.target_modules` reaches, by PEFT's rules.

An adapter hangs on a module, by the end of its name. In transformers 5 stacked experts and routers
are parameters, not modules; for some families PEFT (0.21,
`peft.utils.transformers_weight_conversion`) maps the names of their former modules to these bare
parameters, and then such names reach no module.

Accepted are whole ends of module names, as `mlp.down_proj`: of targets whose adapters the planner
counts, and in `lora.modules_to_save` of modules whose copies it counts.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from shardwise.spec.job.keys import LoraSpec
from shardwise.spec.model.shape import Matrix, ModelShape

#: What of its module's name PEFT knows a bare parameter by, in families named like one of these.
BARE_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "mixtral": {"gate": ("gate",), "gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)},
    "qwen2_moe": {"gate": ("gate",), "gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)},
}

#: Names of modules that PEFT (0.21, `peft.tuners.tuners_utils`) refuses to adapt in these families,
#: whose kernels read their weights without calling them.
NEVER_ADAPTED: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"), ("conv1d", "out_proj")
)

#: How an adapter hangs on a matrix.
Hold = Literal["module", "bare"]


def hold_of(matrix: Matrix, lora: LoraSpec, model: ModelShape) -> Hold | None:
    """How an adapter hangs on a matrix; None where none does, or a copy (`modules_to_save`)."""
    if is_copied(matrix.name, lora.modules_to_save):
        return None
    names = bare_names(matrix, model)
    targets = lora.target_modules
    if names:
        named = targets == "all-linear" or all(any(names_it(target, name) for target in targets) for name in names)
        return "bare" if named else None
    if not is_adaptable(matrix, model) or matrix.name.rpartition(".")[2] in hidden_names(model):
        return None
    if targets == "all-linear" or any(names_it(matrix.name, name) for name in targets):
        return "module"
    return None


def is_adaptable(matrix: Matrix, model: ModelShape) -> bool:
    """Whether adapters hang on a matrix in this family."""
    return matrix.adaptable and matrix.name.rpartition(".")[2] not in NEVER_ADAPTED.get(model.family, ())


def attention_targets(model: ModelShape) -> list[str]:
    """The names of modules of attention: targets that leave out stacked experts, and MLPs."""
    read = ("attention_input", "attention_output")
    matrices = [matrix for kind in model.kinds for matrix in kind.matrices if matrix.reads in read]
    return list(dict.fromkeys(m.name.rpartition(".")[2] for m in matrices if is_adaptable(m, model)))


def adapter_rank(matrix: Matrix, lora: LoraSpec, model: ModelShape) -> int:
    """Rank of one expert's or matrix's adapter: r for each module that it was."""
    return lora.r * max(1, len(bare_names(matrix, model)))


def bare_names(matrix: Matrix, model: ModelShape) -> tuple[str, ...]:
    """The names by which targets reach a matrix as a bare parameter; empty where they do not."""
    known, name = BARE_NAMES.get(model.bare_experts or "", {}), matrix.name.rpartition(".")[2]
    # A router's weight is one also where the router is a linear layer, or has one.
    return () if matrix.adaptable and name != "gate" else known.get(name, ())


def hidden_names(model: ModelShape) -> frozenset[str]:
    """Names that reach no module, because they mean bare parameters."""
    return frozenset(name for names in BARE_NAMES.get(model.bare_experts or "", {}).values() for name in names)


def half_named(lora: LoraSpec, model: ModelShape) -> Iterator[tuple[list[str], list[str]]]:
    """Bare parameters of whose former names the targets hold some but not all: both lists."""
    if lora.target_modules == "all-linear":
        return
    for names in BARE_NAMES.get(model.bare_experts or "", {}).values():
        named = [name for name in names if any(names_it(target, name) for target in lora.target_modules)]
        if named and len(named) < len(names):
            yield named, [name for name in names if name not in named]


def is_copied(name: str, saved: Sequence[str]) -> bool:
    """Whether PEFT trains a copy of a part: its name, or one around it, ends with a saved one."""
    return any(module.endswith(end) for module in around(name) for end in saved)


def around(name: str) -> Iterator[str]:
    """The modules around one, the outermost first, and itself."""
    parts = name.split(".")
    return (".".join(parts[: count + 1]) for count in range(len(parts)))


def names_it(name: str, end: str) -> bool:
    """Whether a target names a module, by PEFT's rule: its whole name, or the end of it."""
    return name == end or name.endswith(f".{end}")


def adapter_refusals(model: ModelShape, lora: LoraSpec | None) -> list[str]:
    """Why the names that a job gives adapters cannot be trained; empty where they can."""
    return [] if lora is None else [*_saved_refusals(model, lora), *_target_refusals(model, lora)]


def _unknown(key: str, names: Iterable[str], then: str) -> str:
    return f"lora.{key} names {', '.join(name or repr(name) for name in names)}; {then}"


def _target_refusals(model: ModelShape, lora: LoraSpec) -> Iterator[str]:
    targets = () if lora.target_modules == "all-linear" else dict.fromkeys(lora.target_modules)
    if unknown := [name for name in targets if not _is_known(name, model)]:
        of_embedding = any(names_it(model.names.embedding, name) for name in unknown)
        hint = "; an embedding is trained as a copy, by lora.modules_to_save" if of_embedding else ""
        adapted = f"of {model.family} this version adapts {', '.join(_ends(model))}{hint}"
        yield _unknown("target_modules", unknown, adapted)


def _is_known(name: str, model: ModelShape) -> bool:
    """Whether a target ends an adaptable module's name, or is PEFT's name of a bare parameter."""
    parts = name.split(".")
    if parts[0].isdigit():
        return False  # a block's own name may end so
    hidden = parts[-1] in hidden_names(model) and not any(part.isdigit() for part in parts)
    return hidden or any(names_it(module, name) for module in _adaptable(model))


def _adaptable(model: ModelShape) -> Iterator[str]:
    """Names of the modules that targets reach, those of blocks as in a block."""
    matrices = (*(m for kind in model.kinds for m in kind.matrices), *model.outer_matrices)
    yield from (m.name for m in matrices if is_adaptable(m, model))
    yield model.names.head


def _ends(model: ModelShape) -> list[str]:
    """The last words of all names that targets may hold; a number with what stands before it."""
    ends = [name if name.rpartition(".")[2].isdigit() else name.rpartition(".")[2] for name in _adaptable(model)]
    return list(dict.fromkeys([*ends, *sorted(hidden_names(model))]))


def _saved_refusals(model: ModelShape, lora: LoraSpec) -> Iterator[str]:
    known = list(_modules(model))
    unknown = [
        name
        for name in dict.fromkeys(lora.modules_to_save)
        if name.partition(".")[0].isdigit() or not any(names_it(module, name) for module in known)
    ]
    if unknown:
        listed = ", ".join([*(name.rpartition(".")[2] for name in _outside(model)), *_parts(model)])
        yield _unknown("modules_to_save", unknown, f"of {model.family} this version copies {listed}")
    for part in () if unknown else _parts(model):
        taken = [module for module in around(part) if any(module.endswith(end) for end in lora.modules_to_save)]
        if len(taken) > 1:
            yield f"lora.modules_to_save names {taken[0]} and {taken[-1]} inside it; name one of them"
            return


def is_saved(name: str | None, lora: LoraSpec) -> bool:
    """Whether PEFT copies the module of that name, outside the blocks."""
    return name is not None and any(name.endswith(end) for end in lora.modules_to_save)


def _modules(model: ModelShape) -> Iterator[str]:
    """All modules whose copies are counted; those of a block by their names inside it."""
    yield from _outside(model)
    yield from (f"{model.names.backbone}.{norm.name}" for norm in model.outer_norms)
    for part in _parts(model):
        yield from around(part)


def _outside(model: ModelShape) -> list[str]:
    return [name for name in (model.names.embedding, model.names.head, model.names.final_norm) if name]


def _parts(model: ModelShape) -> list[str]:
    """Names of a block's norms and matrices; none in mixtures of experts, which are not copied."""
    if model.has_experts:
        return []
    return list(dict.fromkeys(part.name for kind in model.kinds for part in (*kind.norms, *kind.matrices)))
