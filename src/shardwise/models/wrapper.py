"""The language model inside a model of more than text: where it lies, and what stays on disk.

Transformers' wrapper is built, and all that text does not pass through is taken out of it. So names
of weights, of adapters and of keys in files are those of the whole model.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Self, cast

from torch import nn

from shardwise.errors import ModelError, Problem, UnsupportedError
from shardwise.models.buffers import saved_buffers
from shardwise.models.keys import Keys


def text_config(config: Any) -> Any:
    """The configuration of the language model: the inner one of a model of more than text."""
    with suppress(ValueError, AttributeError):  # there are several, or a part of it is left out
        return config.get_text_config(decoder=True)
    return config


def auto_class(config: Any) -> Any:
    """The class by which transformers builds and loads the whole model of a configuration."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMultimodalLM

    wrappers = AutoModelForImageTextToText, AutoModelForMultimodalLM
    found = [one for one in wrappers if type(config) in one._model_mapping]
    alone = text_config(config) is config and type(config) in AutoModelForCausalLM._model_mapping
    return AutoModelForCausalLM if alone or not found else found[0]


@dataclass(frozen=True, kw_only=True)
class Inside:
    """Names of modules in a wrapper. `language`: smallest with backbone and head, "" for all."""

    language: str
    backbone: str
    head: str

    def holds(self, name: str) -> bool:
        """Whether a weight is the language model's."""
        return name.startswith((f"{self.backbone}.", f"{self.head}."))


def find_inside(model: nn.Module) -> Inside | None:
    """Where the language model lies in a model from transformers; None where it is the whole.
    Raises UnsupportedError: it takes no text alone, or has no embedding, backbone and head."""
    from transformers import PreTrainedModel

    whole = cast(Any, model)
    if text_config(whole.config) is whole.config:
        return None
    asked = [one for one in signature(whole.forward).parameters.values() if one.name != "input_ids"]
    if needed := [one.name for one in asked if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]:
        raise UnsupportedError(f"{type(model).__name__} takes no text without {' and '.join(needed)}")
    embedding = head = None
    with suppress(NotImplementedError, AttributeError):  # of a class that does not say where they are
        embedding, head = whole.get_input_embeddings(), whole.get_output_embeddings()
    names = {id(module): name for name, module in model.named_modules()}
    around: list[str] = []
    backbones: list[str] = []
    for name, module in model.named_modules():
        held = {id(part) for part in module.modules()} if isinstance(module, PreTrainedModel) else set[int]()
        if id(embedding) in held:
            (around if id(head) in held else backbones).append(name)
    if head is None or not around or not backbones:
        raise UnsupportedError(f"{type(model).__name__} has no language model with an embedding, a backbone and a head")
    return Inside(language=around[-1], backbone=backbones[-1], head=names[id(head)])


def language_weights(model: nn.Module) -> Callable[[str], bool]:
    """Whether a weight of transformers' is its language model's. Raises as `find_inside`."""
    inside = find_inside(model)
    return (lambda _name: True) if inside is None else inside.holds


def others(model: nn.Module, inside: Inside) -> Iterator[tuple[nn.Module, str, str]]:
    """What of a wrapper is not its language model: the module that holds a part, the part's name
    there, its whole name. A part is a module, or a parameter of one around the language model."""
    kept = {id(model.get_submodule(name)) for name in (inside.backbone, inside.head)}

    def visit(module: nn.Module, prefix: str) -> Iterator[tuple[nn.Module, str, str]]:
        for name, child in module.named_children():
            if any(id(part) in kept for part in child.modules()):
                if id(child) not in kept:
                    yield from visit(child, f"{prefix}{name}.")
            else:
                yield module, name, f"{prefix}{name}"
        yield from ((module, name, f"{prefix}{name}") for name, _ in module.named_parameters(recurse=False))

    return visit(model, "")


def leave_others(model: nn.Module, inside: Inside) -> list[str]:
    """Takes out of a wrapper, in place, all but its language model; the names of what went."""
    found = list(others(model, inside))
    for holder, name, _ in found:
        setattr(holder, name, None)
    return [name for _, _, name in found]


def pattern_of(names: Iterable[str]) -> str:
    """A regular expression of modules and all inside them, as PEFT's `exclude_modules` takes it."""
    return rf"({'|'.join(map(re.escape, sorted(names)))})(\..*)?"


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What a folder has beside the language model, which stays on disk. `modules`: the outermost
    modules and parameters, `names`: tensors, as the wrapper calls them; `keys`: those in files."""

    modules: tuple[str, ...]
    names: frozenset[str]
    keys: tuple[str, ...]

    @classmethod
    def find(cls, whole: nn.Module, *, keys: Keys, folder: Path) -> Self | None:
        """None for a language model alone. Raises ModelError: the folder lacks part of the rest."""
        inside = find_inside(whole)
        if inside is None:
            return None
        prefix = f"{cast(Any, whole).base_model_prefix}."
        tied: dict[int, set[str]] = {}
        for name, parameter in whole.named_parameters(remove_duplicate=False):
            tied.setdefault(id(parameter), set()).update((name, name.removeprefix(prefix)))
        stored = {*keys.names.values(), *keys.stacks, *keys.unread}
        lacking = (sorted(names, key=len) for names in tied.values() if not names & stored)
        problems = [
            Problem(where=str(folder), message=f"the weight {names[-1]} is missing")
            for names in lacking
            if not any(map(inside.holds, names))
        ]
        if problems:
            raise ModelError(problems)
        own = {name for names in tied.values() if any(map(inside.holds, names)) for name in names}
        own |= {name.removeprefix(prefix) for name in saved_buffers(whole) if inside.holds(name)}
        left = {key: name for key, name in keys.names.items() if name not in own and not inside.holds(name)}
        modules = tuple(name for _, _, name in others(whole, inside))
        return cls(modules=modules, names=frozenset(left.values()), keys=tuple(sorted(left)))
