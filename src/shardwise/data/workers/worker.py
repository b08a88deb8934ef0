"""A preparation worker (`programs/data_worker.py`): reads, renders, tokenises chunks under limits.

It alone parses rows and renders chat templates, both from strangers. It speaks JSON lines, one
reply per request:

    {"do": "load", ...}    -> facts about the tokenizer, or {"error": ...}
    {"do": "chunk", ...}   -> what became of a chunk's rows; tokens go to files
    {"do": "sample", ...}  -> how many rows a chunk has, and the lengths of the first
    {"do": "template"}     -> {}, or {"error": ...} where the chat template cannot be compiled
    {"do": "decode", ...}  -> tokens as text, for the preview
"""

import errno
import gc
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from shardwise.data.prepare.build import ShardWriter
from shardwise.data.read.chunks import Chunk
from shardwise.data.read.formats import BY_NAME, Conversation, Format, Labelled, answers_of, read_row, renamed
from shardwise.data.read.messages import RowError
from shardwise.data.read.rows import BadRow, DataRow, read_chunk
from shardwise.data.read.sources import COLUMNAR
from shardwise.data.workers.pool import WorkerLimits, bound_memory, bound_next_batch
from shardwise.data.workers.render import DEFAULT_TEMPLATE, Rendered, Renderer
from shardwise.data.workers.template import TemplateMemoryError
from shardwise.data.workers.tokens import Rules, Tokenizer, Tokens, load_tokenizer, shorten
from shardwise.errors import MAX_PROBLEMS_LISTED, DataError, said
from shardwise.units import format_bytes

BATCH_ROWS = 256
BATCH_CHARACTERS = 1_000_000
MAX_MESSAGE = 600
"""Characters of one problem: a sentence may quote what a stranger wrote."""


@dataclass(kw_only=True)
class Tally:
    """What became of a chunk's rows. `notes`: what was done that their reader would not guess, with
    the number of rows; `keys`: of messages; `columns`: those that `data.columns` names; `lengths`:
    rows by tokens, before any is cut."""

    num_rows: int = 0
    num_dropped: int = 0
    num_problems: int = 0
    problems: list[tuple[int, str]] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    columns: set[str] = field(default_factory=set)
    lengths: dict[int, int] = field(default_factory=dict)

    def problem(self, line: int, message: str) -> None:
        """Notes a bad row."""
        self.num_problems += 1
        if len(self.problems) < MAX_PROBLEMS_LISTED:
            self.problems.append((line, message[:MAX_MESSAGE]))

    def note(self, notes: Sequence[str]) -> None:
        """Counts a row's notes."""
        for note in dict.fromkeys(notes):
            self.notes[note] = self.notes.get(note, 0) + 1


#: Of a pair from which nothing is learnt.
ALIKE = "chosen and rejected are the same, so that nothing is learnt from them"

#: Of rows among the first of a part of a file: it takes as long as to make their tokens.
OTHERWISE = "transformers, and so training, cuts the text otherwise than tokenizer.json (of a file's first rows)"


@dataclass(frozen=True, kw_only=True)
class RenderedRow:
    """A row as text: one side, or chosen and rejected; `label`: whether it is a good answer."""

    line: int
    sides: tuple[Rendered, ...]
    label: bool


def _longest(sides: Sequence[Tokens]) -> int:
    return max(len(tokens.ids) for tokens in sides)


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A loaded tokenizer and the rules of one preparation."""

    tokenizer: Tokenizer
    renderer: Renderer
    rules: Rules
    limits: WorkerLimits

    def chunk(self, chunk: Chunk, *, form: Format, stem: Path) -> Tally:
        """Writes the chunk's rows as a shard."""
        tally = Tally()
        with ShardWriter(stem) as shard:
            for batch in self._batches(chunk, form, tally):
                shard.append(list(self._keep(batch, tally)))
        return tally

    def sample(self, chunk: Chunk, *, form: Format, most: int, whole: bool) -> Tally:
        """The lengths of a chunk's first rows, written nowhere; `whole`: all rows are counted."""
        tally, rendered = Tally(), list[RenderedRow]()
        bound_next_batch(self.limits)
        for index, row in enumerate(read_chunk(chunk)):
            tally.num_rows = index + 1
            one = self._render(row, form, tally, columnar=chunk.kind in COLUMNAR) if index < most else None
            if one is not None:
                rendered.append(one)
            if tally.num_rows >= most and not whole:
                break
        tally.lengths = dict(Counter(_longest(sides) for _, sides in self._encoded(rendered)))
        return tally

    def _encoded(self, rows: list[RenderedRow]) -> Iterator[tuple[RenderedRow, list[Tokens]]]:
        encoded = iter(self.tokenizer.encode([side for row in rows for side in row.sides]))
        for row in rows:
            yield row, [next(encoded) for _ in row.sides]

    def _batches(self, chunk: Chunk, form: Format, tally: Tally) -> Iterator[list[RenderedRow]]:
        batch: list[RenderedRow] = []
        characters = 0
        for row in read_chunk(chunk):
            if tally.num_rows % BATCH_ROWS == 0:
                bound_next_batch(self.limits)
            tally.num_rows += 1
            rendered = self._render(row, form, tally, columnar=chunk.kind in COLUMNAR)
            if rendered is None:
                continue
            batch.append(rendered)
            characters += sum(len(side.text) for side in rendered.sides)
            if len(batch) == BATCH_ROWS or characters > BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
                bound_next_batch(self.limits)
        if batch:
            yield batch

    def _render(self, row: DataRow | BadRow, form: Format, tally: Tally, *, columnar: bool) -> RenderedRow | None:
        if isinstance(row, BadRow):
            tally.problem(row.line, row.message)
            return None
        tally.columns |= row.value.keys() & self.rules.columns.values()
        try:
            example = read_row(form, renamed(row.value, self.rules.columns), columnar=columnar)
            sides = self.renderer.sides(example)
        except RowError as error:
            tally.problem(row.line, str(error))
            return None
        tally.note([note for side in sides for note in side.notes])
        if tally.num_rows <= BATCH_ROWS and any(self.tokenizer.cuts_otherwise(side.text) for side in sides):
            tally.note([OTHERWISE])
        for answer in answers_of(example):
            if isinstance(answer, Conversation):
                tally.keys.update(*answer.messages)
        label = example.label if isinstance(example, Labelled) else True
        return RenderedRow(line=row.line, sides=sides, label=label)

    def _keep(self, batch: list[RenderedRow], tally: Tally) -> Iterator[tuple[int, Tokens]]:
        """Tokens of the rows that are kept: both sides of a pair, or neither."""
        for row, sides in self._encoded(batch):
            longest = _longest(sides)
            tally.lengths[longest] = tally.lengths.get(longest, 0) + 1
            kept = [self._beyond_vocabulary(tokens) or shorten(tokens, self.rules) for tokens in sides]
            names = ("chosen ", "rejected ") if len(sides) > 1 else ("",)
            wrong = [f"{name}{one}" for name, one in zip(names, kept, strict=True) if isinstance(one, str)]
            if wrong:
                tally.problem(row.line, wrong[0])
            elif any(one is None for one in kept):
                tally.num_dropped += 1
            else:
                if len(sides) > 1 and np.array_equal(sides[0].ids, sides[1].ids):
                    tally.note([ALIKE])
                yield from ((row.line, replace(one, label=row.label)) for one in kept if isinstance(one, Tokens))

    def _beyond_vocabulary(self, tokens: Tokens) -> str | None:
        largest = int(tokens.ids.max(initial=-1))
        if self.tokenizer.vocab_size is None or largest < self.tokenizer.vocab_size:
            return None
        return (
            f"has token id {largest} ({self.tokenizer.decode([largest])!r}), beyond the model's vocabulary of "
            f"{self.tokenizer.vocab_size}; tokenizer and model do not belong together"
        )


def _load(request: dict[str, Any]) -> tuple[Worker, dict[str, Any]]:
    rules, limits = Rules(**request["rules"]), WorkerLimits(**request["limits"])
    tokenizer = load_tokenizer(request["tokenizer"])
    renderer = tokenizer.renderer(rules)
    gc.freeze()  # what is loaded stays; collections of what rows leave behind need not look at it
    bound_memory(limits)
    worker = Worker(tokenizer=tokenizer, renderer=renderer, rules=rules, limits=limits)
    facts = {
        "padding_id": tokenizer.eos_id,  # of padding tokens' rows of zeros Gemma 3n has no gradient
        "has_template": tokenizer.template is not None,
        "added_ids": tokenizer.added_ids,
        "generation_blocks": any(template.marks_answers for template in renderer.templates.values()),
    }
    return worker, facts


def _chunk(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    described = {**request["chunk"], "header": tuple(request["chunk"]["header"])}
    tally = worker.chunk(Chunk(**described), form=BY_NAME[request["format"]], stem=Path(request["stem"]))
    template = str(worker.renderer.template or DEFAULT_TEMPLATE)
    unread = sorted(key for key in tally.keys - {"role", "content"} if not _may_read(template, key))
    return {**asdict(tally), "problems": sorted(tally.problems), "keys": unread, "columns": sorted(tally.columns)}


def _sample(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    described = {**request["chunk"], "header": tuple(request["chunk"]["header"])}
    form, most, whole = BY_NAME[request["format"]], request["most"], request["whole"]
    tally = worker.sample(Chunk(**described), form=form, most=most, whole=whole)
    return {"num_rows": tally.num_rows, "lengths": sorted(tally.lengths.items())}


def _may_read(template: str, key: str) -> bool:
    """Whether a template names a key of messages, or writes messages whole."""
    whole = r"\bm(sg|essages?)?\s*(\|\s*(tojson|items|string)|\.items\()"
    return re.search(rf"\b{re.escape(key)}\b|{whole}", template) is not None


def _template(worker: Worker, _request: dict[str, Any]) -> dict[str, Any]:
    bound_next_batch(worker.limits)
    faults = filter(None, (template.syntax_fault() for template in worker.renderer.templates.values()))
    return {"error": fault} if (fault := next(faults, None)) else {}


def _decode(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    return {"texts": [worker.tokenizer.decode(ids) for ids in request["pieces"]]}


def _answer(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    verbs = {"chunk": _chunk, "sample": _sample, "template": _template, "decode": _decode}
    try:
        return verbs[request["do"]](worker, request)
    except (TemplateMemoryError, MemoryError):
        may_take = format_bytes(worker.limits.memory_bytes)
        return {"error": f"needs more than {may_take} of memory; shorten the rows or replace the chat template"}
    except Exception as error:  # noqa: BLE001 - it says what it met; the problems of other chunks are still found
        number = error.errno if isinstance(error, OSError) else None
        more = {"errno": number} if number in (errno.ENOSPC, errno.EDQUOT) else {}
        return {"error": f"stopped a worker: {type(error).__name__}: {said(error)}", **more}


def serve(requests: TextIO, replies: TextIO) -> None:
    """Answers requests until the other end closes, as it does when the parent dies."""
    worker: Worker | None = None
    for line in requests:
        request = json.loads(line)
        if worker is None:
            try:
                worker, reply = _load(request)
            except DataError as error:
                reply = {"error": error.problems[0].message}
        else:
            reply = _answer(worker, request)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
