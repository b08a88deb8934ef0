"""The names that `lora.modules_to_save` may hold: ends of names of embedding, head, norms and what is in a block.

PEFT copies every module whose name ends so, whole words or not, passes over a name of nothing, and hangs no adapter
where a name is one of the words of a module's name. Here each name must mean something of this model that is counted,
and nothing beside that, or the planner and the trainer refuse it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardwise.spec.job import LoraSpec
from shardwise.spec.model import ModelShape
from shardwise.spec.target_names import behind_number
from shardwise.spec.targets import around, hold_of, is_copied, names_it

#: What PEFT calls the modules of an adapter, which it hangs first.
_OF_ADAPTERS = (
    *("base_layer", "lora_A", "lora_B", "lora_dropout", "lora_embedding_A", "lora_embedding_B"),
    *("lora_magnitude_vector", "lora_A.default"),
)


def saved_refusal(model: ModelShape, lora: LoraSpec) -> str | None:
    """Why a name is not copied, or not as it would be counted; None where all are."""
    for reason in (_of_single_blocks, _of_nothing, _of_more, _of_experts, _of_a_copy, _of_the_adapted):
        if said := reason(model, lora):
            return f"lora.modules_to_save names {said}"
    return None


def is_saved(name: str | None, lora: LoraSpec) -> bool:
    """Whether the module of that name, outside the blocks, is copied, by PEFT's rule: the end of its name."""
    return name is not None and any(name.endswith(end) for end in lora.modules_to_save)


def _of_single_blocks(model: ModelShape, lora: LoraSpec) -> str | None:
    """Names with a block's number in them: all blocks of a kind are planned alike."""
    ends = {name: behind_number(name) for name in lora.modules_to_save if not _means(name, model)}
    ends = {name: end for name, end in ends.items() if end and any(_inside(end, model))}
    if not ends:
        return None
    return (
        f"{', '.join(ends)}, and copies in single blocks are not planned by this version; write the end of the name "
        f"that all of them have: {', '.join(dict.fromkeys(ends.values()))}"
    )


def _of_nothing(model: ModelShape, lora: LoraSpec) -> str | None:
    unknown = [name for name in dict.fromkeys(lora.modules_to_save) if not _means(name, model)]
    if not unknown:
        return None
    return f"{', '.join(unknown)}, which {model.family} has no module of with weights; {_known(model)}"


def _of_more(model: ModelShape, lora: LoraSpec) -> str | None:
    """Names that take modules of which no copy is counted, beside others or alone."""
    for name in lora.modules_to_save:
        if (other := next(_uncounted(name, model), None)) is not None:
            return (
                f"{name or repr(name)}, and PEFT copies every module whose name ends so, {other} too, of which "
                f"no copy is planned by this version; write whole names: {_known(model)}"
            )
    return None


def _of_experts(model: ModelShape, lora: LoraSpec) -> str | None:
    if not model.has_experts:
        return None
    matrices = [m.name for kind in model.kinds for m in kind.matrices]
    inside = [
        name
        for name in lora.modules_to_save
        if not any(_counted(name, model)) or any(is_copied(matrix, [name]) for matrix in matrices)
    ]
    if not inside:
        return None
    return (
        f"{', '.join(inside)}, and copies of what is in a block of {model.family}, a mixture of experts, are not "
        f"planned by this version; {_known(model)}"
    )


def _of_a_copy(model: ModelShape, lora: LoraSpec) -> str | None:
    """Names of a module and of what is inside it, of which PEFT makes a copy in the copy."""
    for part in _parts(model):
        taken = [module for module in around(part) if any(module.endswith(end) for end in lora.modules_to_save)]
        if len(taken) > 1:
            named = [name for name in lora.modules_to_save if any(module.endswith(name) for module in taken)]
            return (
                f"{', '.join(named)}, and {taken[-1]} is inside {taken[0]}, whose copy has one of it; write the whole "
                "name of the one or the other"
            )
    return None


def _of_the_adapted(model: ModelShape, lora: LoraSpec) -> str | None:
    """Names that end the name of a module without being a word of it: PEFT adapts that, and cannot copy it then."""
    for module in _adapted(model, lora):
        named = [name for name in lora.modules_to_save if any(part.endswith(name) for part in around(module))]
        if named and not any(names_it(part, name) for name in named for part in around(module)):
            last = module.rpartition(".")[2]
            return (
                f"{', '.join(named)}, and PEFT makes no copy of {module}, whose name ends so and which carries an "
                f"adapter; write its whole name, {last}, or leave it out of lora.target_modules"
            )
    return None


def _adapted(model: ModelShape, lora: LoraSpec) -> Iterator[str]:
    """Modules that the targets reach, whatever is saved."""
    plain = lora.model_copy(update={"modules_to_save": []})
    for kind in model.kinds:
        yield from (m.name for m in kind.matrices if hold_of(m, plain, kind) == "module")
    if lora.target_modules != "all-linear" and any(names_it(model.names.head, end) for end in lora.target_modules):
        yield model.names.head


def _means(name: str, model: ModelShape) -> bool:
    """Whether there is a module whose name ends so."""
    return any(_inside(name, model)) or any(_counted(name, model)) or any(_uncounted(name, model))


def _inside(name: str, model: ModelShape) -> Iterator[str]:
    """The parts of a block that it takes."""
    return (part for part in _parts(model) if is_copied(part, [name]))


def _counted(name: str, model: ModelShape) -> Iterator[str]:
    """What it takes outside the blocks, and is counted."""
    names = model.names
    norms = (f"{names.backbone}.{norm.name}" for norm in model.outer_norms)
    return _ending((names.embedding, names.head, names.final_norm, *norms), name)


def _uncounted(name: str, model: ModelShape) -> Iterator[str]:
    """What it takes outside the blocks, and is not counted; whole blocks first."""
    names = model.names
    if any(f"{names.blocks}{number}".endswith(name) for number in ("", *(f".{i}" for i in range(model.num_layers)))):
        yield "whole blocks"
    holders = dict.fromkeys(holder for each in (names.blocks, names.embedding) for holder in list(around(each))[:-1])
    projections = (f"{names.backbone}.{matrix.name}" for matrix in model.outer_matrices)
    yield from _ending((names.positions, *holders, *projections, *_OF_ADAPTERS), name)


def _ending(modules: Iterable[str | None], name: str) -> Iterator[str]:
    return (module for module in modules if module is not None and module.endswith(name))


def _parts(model: ModelShape) -> list[str]:
    """Names of a block's norms and matrices, in it."""
    return list(dict.fromkeys(part.name for kind in model.kinds for part in (*kind.norms, *kind.matrices)))


def _known(model: ModelShape) -> str:
    """The names that may be written."""
    names = model.names
    outside = {"its embedding is": names.embedding, "its head": names.head, "its last norm": names.final_norm}
    said = [f"{what} {name.rpartition('.')[2]}" for what, name in outside.items() if name is not None]
    if not model.has_experts:
        said.append(f"and a block has {', '.join(_parts(model))}")
    return ", ".join(said)
