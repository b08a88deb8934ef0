"""The names that `lora.target_modules` may hold: ends of names of what every block has, or of what lies outside them.

PEFT passes over a name of nothing where another one means something, and hangs adapters on single blocks and on tables
that no forecast counts. Here each name must mean something that is counted, or the planner and the trainer refuse it.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.spec.job import LoraSpec
from shardwise.spec.model import ModelShape
from shardwise.spec.targets import hidden_names, names_it


def target_refusal(model: ModelShape, lora: LoraSpec) -> str | None:
    """Why the targets hold names that no adapter is planned for; None where each of them is known."""
    if lora.target_modules == "all-linear":
        return None
    unknown = [name for name in dict.fromkeys(lora.target_modules) if not _is_known(name, model)]
    for reason in (_embedding, _single_blocks):
        if said := reason(unknown, model):
            return f"lora.target_modules names {said}"
    if not unknown:
        return None
    named = ", ".join(name or "''" for name in unknown)
    return (
        f"lora.target_modules names {named}, and no module of {model.family} that carries an adapter in this version "
        f"is called so; there are {', '.join(_ends(model))}"
    )


def _embedding(unknown: list[str], model: ModelShape) -> str | None:
    named = [name for name in unknown if names_it(model.names.embedding, name)]
    if not named:
        return None
    return (
        f"{', '.join(named)}, and an adapter on the embedding is not forecast by this version; leave it out, or name "
        "it in lora.modules_to_save, which trains a copy of it"
    )


def _single_blocks(unknown: list[str], model: ModelShape) -> str | None:
    """Names with a block's number in them: all blocks of a kind are planned alike."""
    ends = {name: end for name in unknown if (end := behind_number(name)) and _is_known(end, model)}
    if not ends:
        return None
    return (
        f"{', '.join(ends)}, and adapters of single blocks are not planned by this version; write the end of the name "
        f"that all of them have: {', '.join(dict.fromkeys(ends.values()))}"
    )


def behind_number(name: str) -> str:
    """What of a module's name stands behind the last number in it; empty where there is none."""
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[numbers[-1] + 1 :]) if numbers else ""


def _is_known(name: str, model: ModelShape) -> bool:
    """Whether a target is the end of a module's name that adapters hang on, or what PEFT calls a bare parameter."""
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
    """The shortest ends of all names that targets may hold: a number has what is around it before it."""
    ends = (_end(name) for name in _modules(model))
    return list(dict.fromkeys([*ends, *sorted(hidden_names(model))]))


def _end(name: str) -> str:
    around, _, last = name.rpartition(".")
    return f"{_end(around)}.{last}" if last.isdigit() and around else last
