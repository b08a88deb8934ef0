"""Counts the rows of a job's files and the tokens of some of them, before data is prepared."""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from shardwise.catalog.noted_data import note_data
from shardwise.data.prepare.cache import source_states
from shardwise.data.prepare.ingest import Preparation, SurveyedFile, survey
from shardwise.data.prepare.prepare import template_of
from shardwise.data.read.chunks import Chunk
from shardwise.data.read.hub import tokenizer_folder
from shardwise.data.read.sources import COLUMNAR, find_sources
from shardwise.data.workers.pool import Pool
from shardwise.errors import DataError
from shardwise.spec.job.file import read_job
from shardwise.spec.job.places import read_places
from shardwise.spec.run import RunDirectory

#: Places of all files that are looked at, evenly spaced, and rows of each.
PLACES, ROWS = 32, 32
#: Text of a row over its tokens, where there is no tokenizer: a usual figure of English.
BYTES_PER_TOKEN = 4
#: Files whose rows are counted by their lines, or by what their groups say.
_COUNTED = ("jsonl", "txt", *COLUMNAR)


def sample_rows(run: RunDirectory) -> None:
    """Notes how many rows a job has, and their lengths. Raises DataError: none are here."""
    job, places = read_job(run.resolved), read_places(run)
    sources = find_sources(job.data.path, fetch=_not_here, key="path", places=places)
    states = source_states(sources, places=places)
    try:
        tokenizer: Path | None = tokenizer_folder(job.model)
    except DataError:
        tokenizer = None
    asked = Preparation(
        job=job,
        train=sources,
        evaluation=(),
        states=states,
        tokenizer=tokenizer or Path(),
        template=template_of(job),
        places=places,
    )
    files = [survey(asked, index) for index in range(len(asked.files))]
    chunks = [chunk for file in files if file.form is not None for chunk in file.chunks]
    if not chunks:
        raise DataError.at(sources[0].label, "has no row that is recognised; `shardwise data` says why")
    looked_at = chunks
    if len(chunks) > PLACES:
        looked_at = [chunks[(2 * n + 1) * len(chunks) // (2 * PLACES)] for n in range(PLACES)]
    replies = _sampled(asked, files, looked_at) if tokenizer else {}
    rows = _rows_by_file(chunks, looked_at, replies)
    lengths = sum((Counter(dict(reply["lengths"])) for reply in replies.values()), Counter[int]())
    sampled, total = lengths.total(), sum(rows.values())
    if not sampled:
        mean = sum(chunk.num_bytes for chunk in chunks) / total / BYTES_PER_TOKEN
        lengths, sampled = Counter({max(1, round(mean)): 1}), 0
    note_data(job, counts=_scaled(lengths, to=total), data_json=_described(asked, files, rows, sampled), sampled=True)


def _not_here(*_: Any, **__: Any) -> Any:
    raise DataError.at("data.path", "is on the hub; `shardwise data` fetches it and counts its rows")


def _sampled(asked: Preparation, files: Sequence[SurveyedFile], chunks: Sequence[Chunk]) -> dict[Chunk, dict[str, Any]]:
    """A worker's reply about each chunk; none where the tokenizer cannot be loaded."""
    requests: list[dict[str, Any]] = []
    for chunk in chunks:
        form, whole = files[chunk.file].form, chunk.kind not in _COUNTED
        name = form.name if form else ""
        requests.append({"do": "sample", "chunk": asdict(chunk), "format": name, "most": ROWS, "whole": whole})
    try:
        with closing(Pool(asked.load, name=asked.job.model, num_workers=1, limits=asked.limits)) as pool:
            found = {chunks[index]: reply for index, reply in pool.run(requests)}
    except DataError:
        return {}
    return {chunk: reply for chunk, reply in found.items() if "error" not in reply}


def _rows_by_file(
    chunks: Sequence[Chunk], looked_at: Sequence[Chunk], replies: dict[Chunk, dict[str, Any]]
) -> Counter[int]:
    """Rows of each file: by its lines or groups, else by bytes, as in what was looked at."""
    rows = Counter[int]()
    for index, chunk in enumerate(chunks):
        after = chunks[index + 1] if index + 1 < len(chunks) else None
        if chunk.kind not in _COUNTED:
            seen = [one for one in looked_at if one in replies and one.file == chunk.file]
            per_byte = sum(replies[one]["num_rows"] for one in seen) / max(1, sum(one.num_bytes for one in seen))
            rows[chunk.file] += max(1, round(per_byte * chunk.num_bytes)) if seen else 1
        elif after is not None and after.file == chunk.file:
            rows[chunk.file] += after.first_line - chunk.first_line
        else:
            rows[chunk.file] += _rows_of_last(chunk)
    return rows


def _rows_of_last(chunk: Chunk) -> int:
    if chunk.kind in COLUMNAR:
        from shardwise.data.read.columnar import groups

        return groups(chunk.path, kind=chunk.kind)[1][chunk.start][0]
    with Path(chunk.path).open("rb") as opened:
        opened.seek(chunk.start)
        block = opened.read(chunk.stop - chunk.start).rstrip()
    return block.count(b"\n") + 1


def _scaled(lengths: Counter[int], *, to: int) -> dict[int, int]:
    """{tokens: rows} with so many rows in all, spread as those that were looked at."""
    ordered = sorted(lengths.items())
    upto = [round(to * seen / lengths.total()) for seen in accumulate((number for _, number in ordered), initial=0)]
    counts = {length: after - before for (length, _), (before, after) in zip(ordered, pairwise(upto), strict=True)}
    return {length: number for length, number in counts.items() if number}


def _described(asked: Preparation, files: Sequence[SurveyedFile], rows: Counter[int], sampled: int) -> dict[str, Any]:
    described: list[dict[str, Any]] = []
    for index, source in enumerate(asked.train):
        own = [file for file, of in enumerate(asked.source_of_file) if of == index]
        form = next((one.form.name for file in own if (one := files[file]).form is not None), "")
        number = sum(rows[file] for file in own)
        described.append({"path": source.label, "format": form, "num_rows": number, "weight": source.weight})
    return {"train": {"sources": described}, "sampled": sampled}
