"""The names that `lora.target_modules` may hold: ends of names of the modules whose adapters the planner counts."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.spec.adapters.targets import hidden_names, names_it
from shardwise.spec.job.keys import LoraSpec
from shardwise.spec.model.shape import ModelShape


def target_refusal(model: ModelShape, lora: LoraSpec) -> str | None:
    """Why `lora.target_modules` cannot be trained; None where it can."""
    if lora.target_modules == "all-linear":
        return None
    unknown = [name for name in dict.fromkeys(lora.target_modules) if not _is_known(name, model)]
    if not unknown:
        return None
    of_embedding = any(names_it(model.names.embedding, name) for name in unknown)
    hint = "; an embedding is trained as a copy, by lora.modules_to_save" if of_embedding else ""
    return (
        f"lora.target_modules names {', '.join(name or repr(name) for name in unknown)}; of {model.family} this "
        f"version adapts {', '.join(_ends(model))}{hint}"
    )


def _is_known(name: str, model: ModelShape) -> bool:
    """Whether a target is the end of an adaptable module's name, or what PEFT calls a bare parameter."""
    parts = name.split(".")
    if parts[0].isdigit():
        return False  # a block's own name may end so
    hidden = parts[-1] in hidden_names(model) and not any(part.isdigit() for part in parts)
    return hidden or any(names_it(module, name) for module in _modules(model))


def _modules(model: ModelShape) -> Iterator[str]:
    """Names of the modules that targets reach, those of blocks as in a block."""
    matrices = (*(m for kind in model.kinds for m in kind.matrices), *model.outer_matrices)
    yield from (m.name for m in matrices if m.adaptable)
    yield model.names.head


def _ends(model: ModelShape) -> list[str]:
    """The last words of all names that targets may hold; a number with what stands before it."""
    ends = [name if name.rpartition(".")[2].isdigit() else name.rpartition(".")[2] for name in _modules(model)]
    return list(dict.fromkeys([*ends, *sorted(hidden_names(model))]))
