"""Where each key of a run's job was written, kept in the run directory for later messages."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

from shardwise.errors import InputError, Problem
from shardwise.spec.run import RunDirectory, read_json, write_json

Key = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class Places:
    """Places by dotted keys: `data.path.0` -> `job.yaml:4`, or the `--set` that gave it."""

    by_key: Mapping[str, str]
    file: str

    def where(self, *key: str | int) -> str:
        """The place of a key, or of its nearest ancestor that was written."""
        for end in range(len(key), -1, -1):
            if (place := self.by_key.get(dotted(key[:end]))) is not None:
                return place
        return f"{self.file}:1"

    def overridden(self, key: Key, *, where: str) -> Self:
        """With another place for a key, and none for what stood below it."""
        kept = {name: place for name, place in self.by_key.items() if not name.startswith(f"{dotted(key)}.")}
        return replace(self, by_key={**kept, dotted(key): where})

    @contextmanager
    def blaming(self, *key: str | int) -> Generator[None]:
        """Errors raised inside begin with a key's place: `job.yaml:4: data.path: a.txt: ...`."""
        try:
            yield
        except InputError as error:
            name = ".".join(part for part in key if isinstance(part, str))
            problems = [Problem(where=self.where(*key), message=f"{name}: {problem}") for problem in error.problems]
            raise type(error)(problems, total=error.total) from None


def dotted(key: Key) -> str:
    """A key as it is written down."""
    return ".".join(map(str, key))


def write_places(run: RunDirectory, by_key: Mapping[str, str]) -> None:
    """Keeps the places of the job's keys."""
    write_json(run.places, dict(by_key))


def read_places(run: RunDirectory) -> Places:
    """The places of the job's keys, as `write_places` kept them."""
    kept = read_json(run.places) or {}
    by_key = {key: place for key, place in kept.items() if isinstance(place, str)}
    return Places(by_key=by_key, file="job" if kept else str(run.resolved))
