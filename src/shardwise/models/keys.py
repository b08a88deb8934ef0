"""What a model calls its weights, and the keys of files that they are stored under.

Files hold each expert's matrices by themselves, and transformers stacks them in one parameter as it
loads; of some layers it joins several weights by rows, or cuts one by rows into several.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from itertools import accumulate
from typing import Any, NamedTuple, Self

from torch import nn

from shardwise.errors import ModelError, UnsupportedError

Shape = tuple[int, ...]

#: End the names of what a stack of experts in 4 bits consists of: its elements, and their scales.
ELEMENTS, SCALES = "_nf4", "_nf4_scales"
#: Adapter wrappers put these parts into the names of weights that exist in the base model.
_WRAPPER_PARTS = (".base_layer", ".original_module", ".modules_to_save.default")


def without_wrappers(name: str) -> str:
    """The name that a weight or buffer has in the base model."""
    for part in _WRAPPER_PARTS:
        name = name.replace(part, "")
    return name.removesuffix(ELEMENTS)


class StoredSpan(NamedTuple):
    """A part of one matrix of a file, and where it lies in what was asked of the stack. `rows`: of
    the matrix, where it is more than one parameter's."""

    key: str
    stored: tuple[slice, ...]
    asked: tuple[int | slice, ...]
    rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class ExpertStack:
    """Matrices [rows, columns] of files that are one parameter [experts, parts * rows, columns] of
    the model: `keys` by part (gate and up are parts of one parameter), then by expert."""

    keys: tuple[tuple[str, ...], ...]

    def shape(self, shape_of: Callable[[str], Shape], *, where: str) -> Shape:
        """Of the parameter. Raises ModelError: experts of folder `where` differ, or are lacking."""
        every = [key for part in self.keys for key in part]
        first, odd = every[0], next((key for key in every if shape_of(key) != shape_of(every[0])), None)
        if odd is not None:
            raise ModelError.at(where, f"{odd} has the shape {shape_of(odd)}, and {first} {shape_of(first)}")
        if len({len(part) for part in self.keys}) > 1:
            counts = ", ".join(f"{len(part)} like {part[0]}" for part in self.keys)
            raise ModelError.at(where, f"experts lack a matrix: there are {counts}")
        rows, columns = shape_of(first)
        return len(self.keys[0]), len(self.keys) * rows, columns

    def spans(self, shape: Shape, *, offsets: Shape, lengths: Shape) -> Iterator[StoredSpan]:
        """What a window of the parameter, which is of this shape, holds of each matrix."""
        (expert, first, column), (experts, count, columns) = offsets, lengths
        rows = shape[1] // len(self.keys)
        for index in range(experts):
            for part, keys in enumerate(self.keys):
                begin, end = max(first, part * rows), min(first + count, (part + 1) * rows)
                if begin < end:
                    stored = slice(begin - part * rows, end - part * rows), slice(column, column + columns)
                    yield StoredSpan(keys[expert + index], stored, (index, slice(begin - first, end - first)))


@dataclass(frozen=True, kw_only=True)
class JoinedRows:
    """Weights [rows, ...] of files, stacked in one parameter: each one's key and rows."""

    parts: tuple[tuple[str, int], ...]

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """As of an `ExpertStack`."""
        return tuple((key,) for key, _ in self.parts)

    def shape(self, shape_of: Callable[[str], Shape], *, where: str) -> Shape:
        """Of the parameter. Raises ModelError: weights of the folder `where` differ beside rows."""
        first, *others = (key for key, _ in self.parts)
        odd = next((key for key in others if shape_of(key)[1:] != shape_of(first)[1:]), None)
        if odd is not None:
            raise ModelError.at(where, f"{odd} has the shape {shape_of(odd)}, and {first} {shape_of(first)}")
        return sum(rows for _, rows in self.parts), *shape_of(first)[1:]

    def spans(self, _shape: Shape, *, offsets: Shape, lengths: Shape) -> Iterator[StoredSpan]:
        """As of an `ExpertStack`."""
        rest = tuple(slice(at, at + length) for at, length in zip(offsets[1:], lengths[1:], strict=True))
        begins, first = 0, offsets[0]
        for key, rows in self.parts:
            begin, end = max(first, begins), min(first + lengths[0], begins + rows)
            if begin < end:
                stored, asked = (slice(begin - begins, end - begins), *rest), (slice(begin - first, end - first),)
                yield StoredSpan(key, stored, asked)
            begins += rows


@dataclass(frozen=True)
class CutRows:
    """`rows` from `first` on of a weight [`stored`, ...] of files; `keys`: as in `ExpertStack`."""

    keys: tuple[tuple[str]]
    first: int
    rows: int
    stored: int

    def shape(self, shape_of: Callable[[str], Shape], **_where: str) -> Shape:
        """Of the parameter."""
        return self.rows, *shape_of(self.keys[0][0])[1:]

    def spans(self, _shape: Shape, *, offsets: Shape, lengths: Shape) -> Iterator[StoredSpan]:
        """As of an `ExpertStack`."""
        begins = (self.first + offsets[0], *offsets[1:])
        window = tuple(slice(at, at + length) for at, length in zip(begins, lengths, strict=True))
        yield StoredSpan(self.keys[0][0], window, (), self.stored)


#: How a parameter is made of weights of files.
Made = ExpertStack | JoinedRows | CutRows


class Keys:
    """The names of a model's weights, and the keys of files that they are stored under. Renamings
    are applied, and experts stacked, rows joined or cut; what else transformers joins or splits has
    no place in the model. `names`: key of a file -> what the model calls it, or its stack, or the
    first that it is cut into; `stacks`: name of a stacked, joined or cut parameter -> the keys of
    its matrices; `unread`: names that transformers makes of keys beside a language model, which are
    copied and never read."""

    def __init__(
        self,
        model: nn.Module,
        stored: Iterable[str],
        shape_of: Callable[[str], Shape],
        *,
        known: Mapping[str, int] | None = None,
        reads: Callable[[str], bool] = lambda _name: True,
    ) -> None:
        """Finds the names of `stored`, all keys of the folder, for a model before it is spread;
        `shape_of` a key. A key that `known` has, names of the whole model (by itself those of
        `model`) and their elements, keeps it where no other name fits. Renamings that none needed
        are not undone in `saved`, as in transformers. `reads`: whether a name is of the model that
        is trained. Raises UnsupportedError: a weight of it is made of keys in another way."""
        from transformers.core_model_loading import dot_natural_key

        renamings, stackings, others = _transforms(model)
        self.names: dict[str, str] = {}
        self.stacks: dict[str, Made] = {}
        parts: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        joined: set[str] = set()
        self.unread: set[str] = set()
        known = known or {name: tensor.numel() for name, tensor in model.state_dict().items()}
        whole = {without_wrappers(name): elements for name, elements in known.items()}
        for key in sorted(stored, key=dot_natural_key):
            name, stacking, part = _stacked(_renamed(key, renamings), stackings)
            if name not in whole and key in whole:
                name, stacking = key, None
            if name not in whole:
                name, cut = self._made(name, others, reads)
                if cut and whole.keys() >= {*cut}:
                    self.stacks |= _cuts(key, shape_of(key)[0], {one: whole[one] for one in cut})
            self.names[key] = name
            if stacking is not None:
                parts[name][part].append(key)
                joined |= {name} if _done(stacking) == _JOINS else set()
        for name, found in parts.items():
            keys = tuple(tuple(found[part]) for part in sorted(found))
            rows = tuple((key, shape_of(key)[0]) for part in keys for key in part) if name in joined else ()
            self.stacks[name] = JoinedRows(parts=rows) if rows else ExpertStack(keys=keys)
        self._undone = [renaming.reverse_transform() for renaming in reversed(renamings) if renaming.was_used()]

    def _made(self, name: str, others: Iterable[Any], reads: Callable[[str], bool]) -> tuple[str, list[str]]:
        """What transformers makes of a key in a way of its own, the first; and all that are cut."""
        made, other, _ = _stacked(name, others)
        if other is None:
            return name, []
        first, *_ = targets = other.target_patterns
        names = [made.replace(first, target) for target in targets]
        if not reads(made):
            self.unread |= {*names}
            return made, []
        if _done(other) not in _CUTS:
            raise UnsupportedError(_unread(name, made, other))
        return made, names

    @classmethod
    def of_loaded(cls, model: nn.Module) -> Self:
        """Of a model in memory, whose files are not asked for: what loading renamed is undone."""
        from transformers.core_model_loading import WeightRenaming

        keys = cls(model, (), lambda _key: ())
        conversions: list[Any] = getattr(model, "_weight_conversions", None) or []
        renamings = (one for one in reversed(conversions) if isinstance(one, WeightRenaming) and one.was_used())
        keys._undone = [renaming.reverse_transform() for renaming in renamings]
        return keys

    def saved(self, name: str) -> str:
        """The key that `save_pretrained` writes a weight under, once the folder has been loaded."""
        return _renamed(name, self._undone)

    def spans(self, name: str, *, shape: Shape, offsets: Shape, lengths: Shape) -> list[StoredSpan]:
        """The keys that `save_pretrained` writes a window of a weight under, and what where."""
        stack = self.stacks.get(name)
        if stack is not None:
            return list(stack.spans(shape, offsets=offsets, lengths=lengths))
        stored = tuple(slice(at, at + length) for at, length in zip(offsets, lengths, strict=True))
        return [StoredSpan(self.saved(name), stored, ())]


def _cuts(key: str, stored: int, sizes: Mapping[str, int]) -> dict[str, CutRows]:
    """Of a weight's rows those of each parameter, by name: as many as its part of all elements."""
    rows = [size * stored // sum(sizes.values()) for size in sizes.values()]
    return dict(
        zip(sizes, map(partial(CutRows, ((key,),), stored=stored), accumulate(rows, initial=0), rows), strict=True)
    )


def why_unread(model: nn.Module) -> str:
    """Why a language model's weights, as they are published, are not read; "" where they are."""
    others = [one for one in _transforms(model)[2] if _done(one) not in _CUTS]
    for name, _ in model.named_parameters():
        for converter in others:
            stored, found, _ = _stacked(name, [converter.reverse_transform()])
            if found is not None:
                return _unread(stored, name, converter)
    return ""


def _unread(stored: str, made: str, converter: Any) -> str:
    how = ", ".join(type(operation).__name__ for operation in converter.operations)
    return (
        f"of {stored} transformers makes {made} as it loads, by {how}, which this version does not do; load the model "
        "with transformers, and save it by save_pretrained(folder, save_original_format=False)"
    )


def _renamed(key: str, renamings: Iterable[Any]) -> str:
    return reduce(lambda name, renaming: renaming.rename_source_key(name)[0], renamings, key)


def _stacked(name: str, stackings: Iterable[Any]) -> tuple[str, Any, int]:
    """The stack that a weight is put in, by what, and which part of it; else its name, and None."""
    for stacking in stackings:
        stack, pattern = stacking.rename_source_key(name)
        if pattern is not None:
            return stack, stacking, stacking.source_patterns.index(pattern)
    return name, None, 0


def _transforms(model: nn.Module) -> tuple[list[Any], list[Any], list[Any]]:
    """What `from_pretrained` does to keys, in its order: renamings, stackings, and all else."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming

    transforms: list[Any] = get_model_conversion_mapping(model)  # pyright: ignore[reportArgumentType]
    renamings = [transform for transform in transforms if isinstance(transform, WeightRenaming)]
    converters = [transform for transform in transforms if isinstance(transform, WeightConverter)]
    known = [one for one in converters if _done(one) in (*_STACKS, _JOINS)]
    return renamings, known, [one for one in converters if one not in known]


#: What is done to stacked matrices, perhaps joined; to weights joined by rows; to one cut by rows.
_STACKS = [("MergeModulelist", 0)], [("MergeModulelist", 0), ("Concatenate", 1)]
_JOINS = [("Concatenate", 0)]
_CUTS = [("Split", 0)], [("Chunk", 0)]


def _done(converter: Any) -> list[tuple[str, int | None]]:
    return [(type(operation).__name__, getattr(operation, "dim", None)) for operation in converter.operations]
