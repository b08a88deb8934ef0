"""The names that `lora.modules_to_save` may hold: whole ends of module names, such as `lm_head` or `mlp.down_proj`.

PEFT copies every module whose name ends with one of them. Accepted are names of modules whose copies are counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.spec.adapters.targets import around, names_it
from shardwise.spec.job.keys import LoraSpec
from shardwise.spec.model.shape import ModelShape


def saved_refusal(model: ModelShape, lora: LoraSpec) -> str | None:
    """Why `lora.modules_to_save` cannot be trained; None where it can."""
    known = list(_modules(model))
    unknown = [
        name
        for name in dict.fromkeys(lora.modules_to_save)
        if name.partition(".")[0].isdigit() or not any(names_it(module, name) for module in known)
    ]
    if unknown:
        return (
            f"lora.modules_to_save names {', '.join(name or repr(name) for name in unknown)}; of {model.family} this "
            f"version copies {', '.join(_listed(model))}"
        )
    for part in _parts(model):
        taken = [module for module in around(part) if any(module.endswith(end) for end in lora.modules_to_save)]
        if len(taken) > 1:
            return f"lora.modules_to_save names {taken[0]} and {taken[-1]} inside it; name one of them"
    return None


def is_saved(name: str | None, lora: LoraSpec) -> bool:
    """Whether PEFT copies the module of that name, outside the blocks."""
    return name is not None and any(name.endswith(end) for end in lora.modules_to_save)


def _modules(model: ModelShape) -> Iterator[str]:
    """All modules whose copies are counted; those of a block by their names inside it."""
    names = model.names
    yield from (name for name in (names.embedding, names.head, names.final_norm) if name)
    yield from (f"{names.backbone}.{norm.name}" for norm in model.outer_norms)
    for part in _parts(model):
        yield from around(part)


def _parts(model: ModelShape) -> list[str]:
    """Names of a block's norms and matrices; none of a mixture of experts, whose parts are not copied."""
    if model.has_experts:
        return []
    return list(dict.fromkeys(part.name for kind in model.kinds for part in (*kind.norms, *kind.matrices)))


def _listed(model: ModelShape) -> list[str]:
    names = (model.names.embedding, model.names.head, model.names.final_norm)
    return [*(name.rpartition(".")[2] for name in names if name), *_parts(model)]
