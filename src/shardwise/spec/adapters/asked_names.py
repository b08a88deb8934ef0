"""The names that `lora.target_modules` and `lora.modules_to_save` may hold: whole ends of module
names, as `mlp.down_proj`.

Accepted are targets whose adapters the planner counts, and modules whose copies it counts.
"""

from collections.abc import Iterable, Iterator

from shardwise.spec.adapters.targets import around, hidden_names, is_adaptable, names_it
from shardwise.spec.job.keys import LoraSpec
from shardwise.spec.model.shape import ModelShape


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
