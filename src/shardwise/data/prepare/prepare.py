"""From the job's data to data.json, before training starts (`programs/prepare.py`)."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

from shardwise.catalog.devices import free_disk
from shardwise.catalog.noted_data import note_data
from shardwise.data.prepare.cache import FileState, cache_key, new_entry, one_at_a_time, source_states, tokenizer_hashes
from shardwise.data.prepare.ingest import Preparation, ingest
from shardwise.data.prepare.told import say
from shardwise.data.read.hub import fetch_hub_rows, tokenizer_folder
from shardwise.data.read.sources import Source, collected, find_sources
from shardwise.data.store import read_manifest
from shardwise.data.workers.pool import WorkerLimits
from shardwise.data.workers.render import DEFAULT_TEMPLATE
from shardwise.errors import DataError, InputError, Problem, ShardwiseError
from shardwise.spec.data_facts import DataFacts, RowLengths
from shardwise.spec.job.file import read_job
from shardwise.spec.job.keys import Job
from shardwise.spec.job.places import Places, read_places
from shardwise.spec.run import RunDirectory, cache_root, note_revision, read_json, revision_of, write_json
from shardwise.units import format_bytes

VERSION = 1
MAX_TEMPLATE_BYTES = 1024 * 1024
MAX_WEIGHT = 1000

#: Bytes of prepared rows over those of the files: 5 a token, and a token is about 4 of text.
_OVER_TEXT = 1.25

_COUNTS = ("num_rows", "num_samples", "num_tokens", "num_trained_tokens", "longest", "num_truncated", "num_dropped")


def prepare(
    run: RunDirectory, *, limits: WorkerLimits | None = None, num_workers: int | None = None, announce: bool = True
) -> dict[str, Any]:
    """Prepares the data of a run's job, or finds it prepared; writes and returns data.json. Raises
    DataError: problems of data, tokenizer or template; InputError: the cache cannot be written."""
    job = read_job(run.resolved)
    root = cache_root()
    places = read_places(run)
    with places.blaming("data", "chat_template"):
        template = template_of(job)
    train, evaluation = _sources(job, root=root, places=places)
    states = source_states(train + evaluation, places=places)
    with places.blaming("model"):
        tokenizer = tokenizer_folder(job.model, revision=revision_of(run, job.model))
    note_revision(run, job.model, folder=tokenizer)
    asked = Preparation(
        job=job,
        train=train,
        evaluation=evaluation,
        states=states,
        tokenizer=tokenizer,
        template=template,
        places=places,
        limits=limits or WorkerLimits(),
        num_workers=num_workers,
    )
    sources, hashes = asked.sources, tokenizer_hashes(tokenizer)
    key = cache_key(job, sources=sources, num_train=len(train), states=states, tokenizer=hashes, template=template)
    entry = root / "data" / key

    def noted(found: dict[str, Any]) -> dict[str, Any]:
        described = _data_json(entry, found, asked=asked, fingerprint=key)
        note_data(job, counts=dict(found["lengths"]), data_json=described)
        return described

    summary = _summary(entry)
    if summary is None:
        summary = _make(entry, asked, measured=lambda found: noted({"ends": None, **found}))
    elif announce:
        say(f"the data was prepared before: {entry}")
    data_json = noted(summary)
    if announce:
        _announce(summary, data_json, sources=sources, cut=job.data.over_long == "truncate")
    write_json(run.data, data_json)
    return data_json


def template_of(job: Job) -> str | None:
    """The chat template that a job's file holds. Raises DataError: it cannot be read."""
    path = job.data.chat_template
    if path is None:
        return None
    try:
        if Path(path).stat().st_size <= MAX_TEMPLATE_BYTES:
            return Path(path).read_text(encoding="utf-8")
        fault = f"is larger than {MAX_TEMPLATE_BYTES} bytes"
    except UnicodeDecodeError:
        fault = "is not UTF-8 text"
    except OSError as error:
        fault = f"cannot be read: {error.strerror}"
    raise DataError.at(path, f"{fault}; expected a chat template")


def _sources(job: Job, *, root: Path, places: Places) -> tuple[tuple[Source, ...], tuple[Source, ...]]:
    """(train, evaluation); the problems of both at once."""
    if not job.data.path:
        message = "data.path is missing; name the rows to train on, for example path: chats.jsonl"
        raise DataError.at(places.where("data", "path"), message)
    problems = list(_wrong_weights(job, places))
    found: list[tuple[Source, ...]] = []
    for key, specs in (("path", job.data.path), ("eval_path", job.data.eval_path)):
        with collected(problems):
            fetch = partial(fetch_hub_rows, into=root / "hub")
            found.append(find_sources(specs, fetch=fetch, key=key, places=places))
    if problems:
        raise DataError(problems)
    return found[0], found[1]


def _wrong_weights(job: Job, places: Places) -> Iterator[Problem]:
    for index, spec in enumerate(job.data.eval_path):
        if spec.weight != 1:
            message = f"data.eval_path: {spec.path}: weight: means nothing here, where each row counts once; remove it"
            yield Problem(where=places.where("data", "eval_path", index, "weight"), message=message)
    for index, spec in enumerate(job.data.path):
        if spec.weight > MAX_WEIGHT:
            message = f"{spec.path}: weight: {spec.weight:g} is too much; a row is seen {MAX_WEIGHT} times at most"
            yield Problem(where=places.where("data", "path", index, "weight"), message=f"data.path: {message}")


def _make(entry: Path, asked: Preparation, *, measured: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Prepares the entry unless another run on this machine does it meanwhile."""
    try:
        with one_at_a_time(entry):
            summary = _summary(entry)
            if summary is None:
                free, needed = free_disk(entry.parent), _OVER_TEXT * sum(state.size for state in asked.states)
                if free < needed:
                    has = f"take about {format_bytes(needed)}, and this disk has {format_bytes(free)} free"
                    say(f"{entry.parent}: prepared rows {has}; set SHARDWISE_CACHE to another")
                with new_entry(entry) as folder:
                    ingest(asked, into=folder, measured=measured)
                summary = _summary(entry)
    except OSError as error:
        message = f"{entry.parent}: cannot write the data cache: {error.strerror}{_room(entry)}"
        raise InputError(f"{message}; set SHARDWISE_CACHE to a folder with space") from None
    if summary is None:
        raise ShardwiseError(f"{entry}: was damaged or removed as soon as it was written; run again")
    return summary


def _room(entry: Path) -> str:
    """What the disk has now that the unfinished entry is removed; empty where there is none."""
    with suppress(OSError):
        return f" ({format_bytes(shutil.disk_usage(entry.parent).free)} free)"
    return ""


def _summary(entry: Path) -> dict[str, Any] | None:
    """What the cache says about an entry, or None where it is not there or damaged."""
    summary = read_json(entry / "summary.json")
    with suppress(DataError):
        for part in {"train", "eval"} & (summary or {}).keys():
            read_manifest(entry / part)
        return summary
    return None


def _data_json(entry: Path, summary: dict[str, Any], *, asked: Preparation, fingerprint: str) -> dict[str, Any]:
    """data.json; of rows that were measured and not yet accepted, without counts of parts."""
    job, train, evaluation, states = asked.job, asked.train, asked.evaluation, iter(asked.states)
    pairs = zip(asked.sources, summary["sources"], strict=True)
    described = [_describe(source, facts, states) for source, facts in pairs]
    labels = [file.label for source in train for file in source.files]
    parts: dict[str, Any] = {
        "train": {**_part(entry / "train", summary.get("train")), "sources": described[: len(train)], "files": labels},
        "eval": None,
    }
    if "eval" in summary:
        own = [file.label for source in evaluation for file in source.files]
        evaluated = {"sources": described[len(train) :], "files": own or labels}
        parts["eval"] = {**_part(entry / "eval", summary["eval"]), **evaluated}
    sides = (" (chosen)", " (rejected)") if job.sides > 1 else ("",)
    shown = [
        {"where": f"{labels[one['file']]}:{one['line']}{sides[one['row'] % job.sides]}", "text": one["text"]}
        for one in summary["preview"]
    ]
    lengths = RowLengths.of(dict(summary["lengths"]), max_length=job.data.max_length)
    return {
        "version": VERSION,
        **parts,
        "fingerprint": fingerprint,
        "lengths": lengths and asdict(lengths),
        "over_long": job.data.over_long,
        "packing": job.data.packing,
        "preview": shown,
        **{name: summary[name] for name in ("padding_id", "chat_template", "template_from", "ends")},
    }


def _part(folder: Path, counts: dict[str, Any] | None) -> dict[str, Any]:
    if not counts:
        return {}
    sides = {"sides": counts["sides"]} if "sides" in counts else {}
    return {"folder": str(folder.resolve()), **{name: counts[name] for name in _COUNTS}, **sides}


def _describe(source: Source, facts: dict[str, Any], states: Iterator[FileState]) -> dict[str, Any]:
    return {
        "path": source.label,
        **{name: facts[name] for name in ("format", "num_rows", "notes", "ignored_columns", "ignored_keys")},
        "num_ignored_files": source.num_ignored,
        "note": source.note,
        "weight": source.weight,
        "files": [{"label": file.label, **asdict(next(states))} for file in source.files],
    }


def _announce(summary: dict[str, Any], data_json: dict[str, Any], *, sources: Sequence[Source], cut: bool) -> None:
    why = ", of which truncation leaves nothing trained" if cut else " as longer than max_length"
    parts = cast(DataFacts, DataFacts.read(data_json))
    told = [*parts.train.sources, *(parts.eval.sources if parts.eval else ())]
    for source, facts, one in zip(sources, summary["sources"], told, strict=True):
        files = f"{len(source.files)} files, " if len(source.files) > 1 else ""
        say(f"{source.label}: {files}{facts['num_rows']:,} rows, {facts['label']}")
        if facts["num_dropped"]:
            some = "all its" if facts["num_dropped"] == facts["num_rows"] else f"{facts['num_dropped']:,}"
            say(f"  {some} rows dropped{why}")
        for sentence in one.said():
            say(f"  {sentence}")
    if cause := data_json["ends"]["cause"]:
        say(f"warning: {cause}")
    if data_json["chat_template"] == DEFAULT_TEMPLATE:
        say("the tokenizer has no chat template; rows are written with the default one, which data.json shows")
    for name, part in (("train", data_json["train"]), ("eval", data_json["eval"])):
        if part is not None:
            what = "pairs of sequences" if "sides" in part else "sequences"
            say(
                f"{name}: {part['num_samples']:,} {what} of at most {part['longest']:,} tokens from "
                f"{part['num_rows']:,} rows; {part['num_tokens']:,} tokens, {part['num_trained_tokens']:,} trained; "
                f"{part['num_truncated']:,} rows truncated, {part['num_dropped']:,} dropped"
            )
