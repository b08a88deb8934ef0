"""Prepares data on a cache miss: cuts files, hands chunks to workers, joins results."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.catalog.devices import usable_cores
from shardwise.data.prepare.build import Shard, copy_tokens, evaluation_rows, gather, preview, write_store
from shardwise.data.prepare.cache import FileState, check_untouched
from shardwise.data.prepare.ends import Ends, count_ends
from shardwise.data.prepare.told import progress
from shardwise.data.read.chunks import Chunk, cut_file
from shardwise.data.read.formats import FORMATS, Format, recognise, renamed, seen_columns
from shardwise.data.read.messages import RowError
from shardwise.data.read.rows import first_columns
from shardwise.data.read.sources import COLUMNAR, Source, SourceFile
from shardwise.data.workers.pool import MAX_WORKERS, Pool, Reply, WorkerLimits
from shardwise.data.workers.render import DEFAULT_TEMPLATE
from shardwise.data.workers.tokens import Rules
from shardwise.data.workers.worker import Tally
from shardwise.errors import MAX_PROBLEMS_LISTED, DataError, Problem
from shardwise.spec.job.keys import Job
from shardwise.spec.job.places import Places
from shardwise.spec.run import write_json

CHUNK_BYTES = (512 * 1024, 4 * 1024 * 1024)
"""The smallest and the largest chunk: a worker starts in the time it takes to tokenise the smallest."""


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What is asked for. `evaluation`: none where a share is set aside; `states`: train's first."""

    job: Job
    train: tuple[Source, ...]
    evaluation: tuple[Source, ...]
    states: tuple[FileState, ...]
    tokenizer: Path
    template: str | None
    places: Places
    limits: WorkerLimits = field(default_factory=WorkerLimits)
    num_workers: int | None = None

    @property
    def sources(self) -> tuple[Source, ...]:
        """Of both parts, train's first."""
        return self.train + self.evaluation

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """Of all sources."""
        return tuple(file for source in self.sources for file in source.files)

    @property
    def source_of_file(self) -> list[int]:
        """For each of `files`, the index of its source."""
        return [index for index, source in enumerate(self.sources) for _ in source.files]

    @property
    def load(self) -> dict[str, Any]:
        """What workers are asked first."""
        data = self.job.data
        columns = {str(ours): theirs for ours, theirs in data.columns.items()}
        same = {name: getattr(data, name) for name in ("train_on", "max_length", "over_long", "rendered")}
        rules = Rules(template=self.template, columns=columns, **same)
        told = {"rules": asdict(rules), "limits": asdict(self.limits)}
        return {"do": "load", "tokenizer": str(self.tokenizer), **told}


@dataclass(frozen=True, kw_only=True)
class SurveyedFile:
    """One file, cut and recognised; `form` is None where no row could be recognised."""

    chunks: Sequence[Chunk]
    problems: Sequence[tuple[int, str]]
    form: Format | None
    columns: Sequence[str] = ()
    ignored: Sequence[str] = ()


def ingest(asked: Preparation, *, into: Path, measured: Callable[[dict[str, Any]], None]) -> None:
    """Writes `train/`, `eval/` and `summary.json` into an empty folder. `measured`: called with
    what is known of rows before any is refused. Raises DataError: all problems of all files."""
    files = [survey(asked, index) for index in range(len(asked.files))]
    chunks = [chunk for file in files for chunk in file.chunks]
    workers = asked.num_workers or max(1, min(usable_cores(), MAX_WORKERS, len(chunks)))
    with asked.places.blaming("model"):
        pool = Pool(asked.load, name=asked.job.model, num_workers=workers, limits=asked.limits)
    with closing(pool):
        _check_template(pool, asked, files)
        stems = [into / f"shard-{index:06d}" for index in range(len(chunks))]
        replies = _work(pool, files, chunks, stems)
        with asked.places.blaming("data", "path"):
            check_untouched(asked.states, labels=[file.label for file in asked.files])
        shards = [Shard(stem=stem, file=chunk.file) for stem, chunk in zip(stems, chunks, strict=True)]
        template_from = _template_from(asked, files, pool.facts)
        ends = Ends(pool.facts["added_ids"])
        summary = {
            "padding_id": pool.facts["padding_id"],
            "chat_template": _TEMPLATES.get(template_from, asked.template),
            "template_from": template_from,
            "sources": _describe(asked, files, chunks, replies),
            "lengths": _lengths(asked, chunks, replies),
            "preview": _preview(asked, pool, shards, replies),
        }
        measured(summary)
        _report_problems(asked, files, chunks, replies)
        _refuse_names_of_nothing(asked, files, replies)
        pool.keep_one()  # joining takes memory, which the others' need not stand beside
        parts = _parts(asked, shards, into=into, ends=ends)
        summary |= {name: {**part, "num_dropped": 0} for name, part in parts.items()}
        summary["ends"] = ends.described(pool)
    for index, reply in enumerate(replies):
        part = "train" if asked.source_of_file[chunks[index].file] < len(asked.train) else "eval"
        summary[part]["num_dropped"] += reply["num_dropped"]
    write_json(into / "summary.json", summary)


def survey(asked: Preparation, index: int) -> SurveyedFile:
    """A file, cut into chunks, with the format of its rows."""
    file = asked.files[index]
    low, high = CHUNK_BYTES
    total = sum(state.size for state in asked.states)
    chunks, problems = cut_file(file, index=index, chunk_bytes=min(high, max(low, total // 64)))
    found = first_columns(chunks)
    if found is None:
        return SurveyedFile(chunks=chunks, problems=problems, form=None)
    (line, columns), renames = found, asked.job.data.columns
    names = renamed({column: column for column in columns}, renames)
    try:
        wanted = asked.sources[asked.source_of_file[index]].format
        form = recognise(columns, wanted=wanted, renames=renames, objective=asked.job.objective)
    except RowError as error:
        return SurveyedFile(chunks=[], problems=[(line, str(error)), *problems], form=None)
    needed = [theirs for ours, theirs in names.items() if ours in form.columns]
    needed += [column for column in seen_columns(columns) if column not in needed]  # refused where they are not empty
    # These are read by columns, so the others are never loaded; a CSV row must be split in full.
    chunks = [replace(chunk, header=tuple(needed)) if chunk.kind in COLUMNAR else chunk for chunk in chunks]
    ignored = [column or "(without a name)" for column in columns if column not in needed]
    return SurveyedFile(chunks=chunks, problems=problems, form=form, columns=columns, ignored=ignored)


def _refuse_names_of_nothing(asked: Preparation, files: Sequence[SurveyedFile], replies: Sequence[Reply]) -> None:
    """Raises DataError where `data.columns` names a column that no row has."""
    seen = {name for file in files for name in file.columns}.union(*(reply["columns"] for reply in replies))
    for ours, theirs in asked.job.data.columns.items():
        if theirs not in seen:
            message = f"data.columns: {ours} is to be read from {theirs}; the rows have {', '.join(files[0].columns)}"
            raise DataError.at(asked.places.where("data", "columns", ours), message)


def _work(pool: Pool, files: Sequence[SurveyedFile], chunks: Sequence[Chunk], stems: Sequence[Path]) -> list[Reply]:
    # A file without a recognised row has only bad ones: any format reports them.
    names = [(files[chunk.file].form or FORMATS[0]).name for chunk in chunks]
    requests = [
        {"do": "chunk", "chunk": asdict(chunk), "format": name, "stem": str(stem)}
        for chunk, name, stem in zip(chunks, names, stems, strict=True)
    ]
    replies: list[Reply] = [_NO_ROWS] * len(chunks)
    with progress("preparing data", total=sum(chunk.num_bytes for chunk in chunks)) as advance:
        for index, reply in pool.run(requests):
            replies[index] = reply
            if "error" in reply:  # the chunk ended its worker; which row it was is not known
                problem = (chunks[index].first_line, f"this row or one after it {reply['error']}")
                replies[index] = {**_NO_ROWS, "failed": True, "num_problems": 1, "problems": [problem]}
            advance(chunks[index].num_bytes)
    return replies


#: The reply about a chunk that no worker is left for; another's problem is reported then.
_NO_ROWS: Reply = asdict(Tally())


def _check_template(pool: Pool, asked: Preparation, files: Sequence[SurveyedFile]) -> None:
    """Raises DataError at the job's key where a template that rows need cannot be compiled."""
    needed = any(file.form and file.form.name != "text" for file in files)
    path = asked.job.data.chat_template
    if needed and (path is not None or pool.facts["has_template"]):
        with asked.places.blaming(*(("model",) if path is None else ("data", "chat_template"))):
            pool.ask({"do": "template"}, name=path or f"the chat template of {asked.job.model}")


def _report_problems(
    asked: Preparation, files: Sequence[SurveyedFile], chunks: Sequence[Chunk], replies: Sequence[Mapping[str, Any]]
) -> None:
    """Raises DataError where anything is wrong: the first few listed, all counted."""
    found = [(index, line, message) for index, file in enumerate(files) for line, message in file.problems]
    total = len(found) + sum(reply["num_problems"] for reply in replies)
    for chunk, reply in zip(chunks, replies, strict=True):
        found += [(chunk.file, line, message) for line, message in reply["problems"]]
    if total:
        listed = [
            Problem(where=f"{asked.files[file].label}:{line}", message=message)
            for file, line, message in sorted(found)[:MAX_PROBLEMS_LISTED]
        ]
        raise DataError(listed, total=total)


def _parts(asked: Preparation, shards: Sequence[Shard], *, into: Path, ends: Ends) -> dict[str, dict[str, Any]]:
    documents = gather(shards, source_of_file=asked.source_of_file)
    by_path = documents["source"] >= len(asked.train)
    seed, fraction = asked.job.train.seed, asked.job.data.eval_fraction
    sides = asked.job.sides
    chosen = by_path | evaluation_rows(len(documents), fraction=fraction, seed=seed, sides=sides)
    parts = {"train": (~chosen, 0, asked.train)}
    if asked.evaluation:
        parts["eval"] = (chosen, len(asked.train), asked.evaluation)
    elif fraction:
        parts["eval"] = (chosen, 0, asked.train)
    _refuse_empty(asked, {name: int(np.count_nonzero(mask)) for name, (mask, _, _) in parts.items()})
    for name in parts:
        (into / name).mkdir()
    count_ends(shards, chosen, into=ends)
    copy_tokens(shards, chosen, train=into / "train", evaluation=into / "eval")
    written: dict[str, dict[str, Any]] = {}
    for name, (mask, first, sources) in parts.items():
        own = documents if mask.all() else documents[mask]
        own["file"] -= np.uint32(sum(len(source.files) for source in asked.sources[:first]))
        own["source"] -= np.uint16(first)
        written[name] = write_store(
            into / name,
            own,
            files=[file.label for source in sources for file in source.files],
            weights=[source.weight for source in sources],
            packed=bool(asked.job.data.packing),
            max_length=asked.job.data.max_length,
            sides=sides,
            labelled=asked.job.objective == "kto",
        )
    return written


def _refuse_empty(asked: Preparation, counts: Mapping[str, int]) -> None:
    names = {"train": asked.train, "eval": asked.evaluation or asked.train}
    for part, count in counts.items():
        if count:
            continue
        limit = asked.job.data.max_length
        key, reason = "max_length", f"every row was dropped as longer than max_length ({limit}); raise it"
        if asked.job.data.over_long == "truncate":
            reason = f"no row has a token to train on among its first {limit}, to which rows are cut; raise it"
        if part == "train" and counts.get("eval") and not asked.evaluation:
            key, reason = "eval_fraction", "eval_fraction leaves no row to train on; lower it or add rows"
        with asked.places.blaming("data", key):
            raise DataError.at(", ".join(source.label for source in names[part]), reason)


#: Where a chat template comes from -> its text, where data.json has not the job's own.
_TEMPLATES = {"tokenizer": None, "none": None, "default": DEFAULT_TEMPLATE}


def _template_from(asked: Preparation, files: Sequence[SurveyedFile], facts: Mapping[str, Any]) -> str:
    """Where the chat template comes from: a word, or the file that the job names."""
    forms = {file.form.name for file in files if file.form}
    if forms <= {"text"}:
        return "none"
    if asked.template is not None:
        return str(asked.job.data.chat_template)
    if facts["has_template"]:
        return "tokenizer"
    return "none" if forms <= {"text", "prompt_completion", "preference", "unpaired_preference"} else "default"


def _lengths(asked: Preparation, chunks: Sequence[Chunk], replies: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """[tokens, rows] of the rows to train on, before any is cut, dropped or set aside."""
    counts = Counter[int]()
    for chunk, reply in zip(chunks, replies, strict=True):
        if asked.source_of_file[chunk.file] < len(asked.train):
            counts.update({int(length): rows for length, rows in reply["lengths"].items()})
    return [list(one) for one in sorted(counts.items())]


def _preview(
    asked: Preparation, pool: Pool, shards: Sequence[Shard], replies: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Of the rows to train on; none where a worker has died, which is reported next."""
    if any(reply.get("failed") for reply in replies):
        return []
    own = [shard for shard in shards if asked.source_of_file[shard.file] < len(asked.train)]
    return preview(pool, own, source_of_file=asked.source_of_file)


def _describe(
    asked: Preparation, files: Sequence[SurveyedFile], chunks: Sequence[Chunk], replies: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """One entry per source: its formats, its rows, and the columns nothing was done with."""
    owner = asked.source_of_file
    described: list[dict[str, Any]] = []
    for index in range(len(asked.sources)):
        own = [file for number, file in enumerate(files) if owner[number] == index]
        lines = any(file.kind == "txt" for file in asked.sources[index].files)
        of_it = [reply for chunk, reply in zip(chunks, replies, strict=True) if owner[chunk.file] == index]
        described.append(
            {
                "format": ", ".join(dict.fromkeys(file.form.name for file in own if file.form)),
                "label": ", ".join(dict.fromkeys(file.form.label for file in own if file.form))
                + (", a document a line" if lines else ""),
                "num_rows": sum(reply["num_rows"] for reply in of_it),
                "num_dropped": sum(reply["num_dropped"] for reply in of_it),
                "notes": sum((Counter(reply["notes"]) for reply in of_it), Counter[str]()),
                "ignored_columns": list(dict.fromkeys(column for file in own for column in file.ignored)),
                "ignored_keys": list(dict.fromkeys(key for reply in of_it for key in reply["keys"])),
            }
        )
    return described
