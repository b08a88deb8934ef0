"""What people read of a job's data, in data.json, plan.json and reports: rows, lengths, examples"""

import json
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar, Self

from pydantic import ConfigDict

from shardwise.spec.job.strict import OPEN, from_plain
from shardwise.units import printable

#: Of lengths; where they spread over more powers of two, one for each.
MOST_BINS = 16


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Tokens of the sequences to train on: of the longest, on average, of a packed row's document.
    Before data is prepared, all are taken as long as they may be."""

    longest: int
    mean: float
    document: float | None = None


#: How many rows there are, and how long they are; None where nobody has counted.
Known = tuple[int | None, Lengths | None]


@dataclass(frozen=True, kw_only=True)
class RowLengths:
    """Tokens of all rows of `data.path`, before any is cut, dropped or set aside.

    Attributes:
        p95: 95 % of the rows are at most so long.
        num_over: rows that are longer than `max_length`.
        bins: [shortest, longest, rows], growing; `max_length` ends one.
    """

    num_rows: int
    mean: float
    median: int
    p95: int
    longest: int
    max_length: int
    num_over: int
    bins: list[list[int]]

    @classmethod
    def of(cls, counts: Mapping[int, int], *, max_length: int) -> Self | None:
        """From {tokens: rows}; None where there is no row."""
        rows = sum(counts.values())
        if not rows:
            return None
        ordered = sorted(counts)
        so_far = list(accumulate(counts[length] for length in ordered))

        def at(share: float) -> int:
            return ordered[bisect_left(so_far, share * rows)]

        return cls(
            num_rows=rows,
            mean=sum(length * number for length, number in counts.items()) / rows,
            median=at(0.5),
            p95=at(0.95),
            longest=ordered[-1],
            max_length=max_length,
            num_over=sum(number for length, number in counts.items() if length > max_length),
            bins=_bins(counts, max_length=max_length),
        )

    def labelled(self) -> list[tuple[str, str, str]]:
        """For each bin its ends, its rows, and the share of rows up to it."""
        so_far = accumulate(rows for _, _, rows in self.bins)
        return [
            (f"{low:,}" if low == high else f"{low:,}-{high:,}", f"{rows:,}", _percent(seen, self.num_rows))
            for (low, high, rows), seen in zip(self.bins, so_far, strict=True)
        ]


def _bins(counts: Mapping[int, int], *, max_length: int) -> list[list[int]]:
    """Powers of two, in as many parts as leave few bins, and an end at `max_length`."""
    powers = [2**exponent for exponent in range(max(counts).bit_length() + 1)]
    bins: list[list[int]] = []
    for parts in (8, 4, 2, 1):
        ends = sorted({0, max_length, *(power + power * part // parts for power in powers for part in range(parts))})
        rows = Counter[int]()
        for length, number in counts.items():
            rows[bisect_left(ends, max(1, length))] += number
        bins = [[ends[index - 1] + 1, ends[index], rows[index]] for index in range(min(rows), max(rows) + 1)]
        if len(bins) <= MOST_BINS:
            break
    return bins


@dataclass(frozen=True, kw_only=True)
class SourceFacts:
    """One entry of `data.path` or `data.eval_path`. `notes`: what was done with rows, and with how
    many; `note`: what is to be said of it as a whole."""

    path: str
    format: str = ""
    num_rows: int = 0
    weight: float = 1.0
    notes: dict[str, int] = field(default_factory=dict[str, int])
    ignored_columns: tuple[str, ...] = ()
    ignored_keys: tuple[str, ...] = ()
    num_ignored_files: int = 0
    note: str = ""

    def said(self) -> Iterator[str]:
        """What was done with its rows, and what of it is not read, as sentences."""
        yield from filter(None, [self.note])
        yield from (f"{rows:,} rows: {note}" for note, rows in sorted(self.notes.items()))
        unread = {"columns": self.ignored_columns, "keys of messages": self.ignored_keys}
        yield from (f"{what} that are not read: {', '.join(names)}" for what, names in unread.items() if names)
        if self.format == "prompt_completion" and "label" in self.ignored_columns:
            yield "all completions are trained alike: which are good, label says under objective: kto alone"
        if self.num_ignored_files:
            yield f"other files, which are not read: {self.num_ignored_files}"


@dataclass(frozen=True, kw_only=True)
class PartFacts:
    """Rows to train or evaluate on, as used; None: not known. `sides`: rows of a sample."""

    sources: tuple[SourceFacts, ...] = ()
    num_rows: int | None = None
    num_samples: int | None = None
    num_tokens: int | None = None
    num_trained_tokens: int | None = None
    longest: int | None = None
    num_truncated: int | None = None
    num_dropped: int | None = None
    sides: int = 1

    @property
    def known(self) -> tuple[int | None, Lengths | None]:
        """The number of samples in an epoch, by the weights of sources, and their lengths, which
        forecasts read; None and None before they are counted."""
        if not self.num_samples or self.num_tokens is None or self.longest is None:
            return None, None
        packed = self.num_rows is not None and self.num_rows > self.num_samples
        document = self.num_tokens / self.num_rows if packed and self.num_rows else None
        mean = self.num_tokens / (self.num_samples * self.sides)
        rows = sum(source.num_rows for source in self.sources)
        share = sum(source.num_rows * source.weight for source in self.sources) / rows if rows else 1
        return max(1, round(self.num_samples * share)), Lengths(longest=self.longest, mean=mean, document=document)


@dataclass(frozen=True, kw_only=True)
class EndToken:
    """A token that trained answers end in, and how many."""

    id: int
    text: str
    count: int


@dataclass(frozen=True, kw_only=True)
class EndFacts:
    """How trained answers end. `unmarked`: how many in no special token; `cause`: why."""

    tokens: tuple[EndToken, ...] = ()
    unmarked: int = 0
    cause: str | None = None

    @property
    def sentence(self) -> str:
        """All of it, in words."""
        parts = [f"{token.text} ({token.count:,} answers)" for token in self.tokens]
        if self.unmarked:
            parts.append(f"no special token ({self.unmarked:,} answers)")
        return self.cause or ", ".join(parts) or "no trained answer"


@dataclass(frozen=True, kw_only=True)
class RowShown:
    """A row as (piece, whether it is trained)."""

    where: str
    text: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """What was counted of a job's data.

    Attributes:
        template_from: `tokenizer`, `default`, `none` (rows need none), or `data.chat_template`.
        sampled: rows whose lengths were looked at, which stand for all; 0 where there is no
            tokenizer, so that lengths are from bytes; None where all were prepared.
    """

    __pydantic_config__: ClassVar[ConfigDict] = OPEN

    train: PartFacts
    eval: PartFacts | None = None
    lengths: RowLengths | None = None
    over_long: str = "error"
    packing: bool = False
    template_from: str | None = None
    ends: EndFacts | None = None
    preview: tuple[RowShown, ...] = ()
    sampled: int | None = None

    @classmethod
    def read(cls, data: Mapping[str, Any] | None) -> Self | None:
        """The part of data.json that is of this kind; None where there is none or it is damaged."""
        try:
            # Names of files may hold halves of characters, which JSON cannot.
            text = printable(json.dumps(data, ensure_ascii=False))
            return None if data is None else from_plain(cls, json.loads(text))
        except (TypeError, ValueError):
            return None

    def lines(self) -> Iterator[tuple[str, str]]:
        """(name, sentence) of all but each length and row; a name is empty if it is the last."""
        part, known = self.train, self.lengths
        for index, source in enumerate(part.sources):
            written = f" ({source.format})" if source.format else ""
            weight = "" if source.weight == 1 else f", weight {source.weight:g}"
            yield "" if index else "rows", f"{source.num_rows:,} of {source.path}{written}{weight}"
        if part.num_tokens is not None and part.num_samples is not None:
            packed = self.packing and part.num_samples != part.num_rows
            how = "pairs of sequences" if part.sides > 1 else "packed sequences" if packed else "sequences"
            trained = part.num_trained_tokens
            shown = "" if trained is None else f"; trained: {_of(trained, part.num_tokens)}"
            yield "tokens", f"{part.num_tokens:,} in {part.num_samples:,} {how}{shown}"
        if known is not None:
            spread = f"median {known.median:,}, P95 {known.p95:,}, longest {known.longest:,} tokens"
            if self.sampled == 0:
                spread = "from bytes, 4 a token, as the tokenizer is not here"
            looked_at = f", of {self.sampled:,} rows that were looked at" if self.sampled else ""
            yield "lengths", f"{spread}; mean {known.mean:,.0f}{looked_at}"
            yield "max_length", self.over(known)
        if self.template_from is not None and any(source.format for source in part.sources):
            yield "template", _TEMPLATES.get(self.template_from, f"{self.template_from} (data.chat_template)")
        if self.ends is not None:
            yield "ends in", self.ends.sentence
        if self.eval is not None and self.eval.num_rows is not None:
            yield "evaluation", f"{self.eval.num_rows:,} rows, {self.eval.num_tokens or 0:,} tokens"
        own = [] if self.eval is None else [one for one in self.eval.sources if one not in part.sources]
        said = [(source.path, sentence) for source in (*part.sources, *own) for sentence in source.said()]
        for index, (path, sentence) in enumerate(said):
            yield "" if index else "notes", f"{path}: {sentence}" if len(part.sources) + len(own) > 1 else sentence

    def over(self, known: RowLengths) -> str:
        """How many rows are longer than `max_length`, and what is done with them."""
        if not known.num_over:
            return f"{known.max_length:,}: {'no row' if self.sampled is None else 'none of these'} is longer"
        head = f"{known.max_length:,}: {_of(known.num_over, known.num_rows)} of {known.num_rows:,} rows are longer"
        if self.over_long == "error":
            some = f", {known.p95:,} 95 % of the rows" if known.max_length < known.p95 < known.longest else ""
            way = f"{known.longest:,} holds all{some}; or set over_long: truncate or drop"
            return f"{head} and are refused (over_long: error). {way}"
        if self.over_long == "drop":
            return f"{head} and are dropped (over_long: drop)"
        lost = self.train.num_dropped
        without = f", and {lost:,} of them dropped: what is left has nothing trained" if lost else ""
        return f"{head} and are cut to it (over_long: truncate){without}"


_TEMPLATES = {
    "tokenizer": "the tokenizer's own",
    "default": "the default one: the tokenizer has none, and data.chat_template names none",
    "none": "none: rows are text",
}


def _of(some: int, whole: int) -> str:
    """`12 (0.2 %)`."""
    return f"{some:,} ({_percent(some, whole)})"


def _percent(some: int, whole: int) -> str:
    """What is not all is never 100 %, and what is not nothing never 0."""
    share = 100 * some / whole if whole else 0.0
    if share in (0, 100) or 1 <= share < 99:
        return f"{share:.0f} %"
    return f"{max(0.1, math.floor(10 * share) / 10):.1f} %"
