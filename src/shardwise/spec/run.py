"""The run directory: names, readers, writers. All that planner and trainer exchange after the plan.

The launcher and the command line read it while the workers write it, so every whole file appears by
one rename and every growing file is a sequence of lines.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

#: Keys of a step of preferences, by TRL's names; those of evaluation begin with `eval_`. `kl`: of
#: `kto` alone.
PREFERENCE_KEYS = (
    *("rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"),
    *("logps/chosen", "logps/rejected", "kl"),
)

#: The phases of a run whose peaks of memory are measured apart; on CPU processes those of a step.
PHASES = ("loading", "forward_backward", "optimizer_step", "evaluation", "saving")
LOADING, FORWARD_BACKWARD, OPTIMIZER, EVALUATION, SAVING = PHASES

CHECKPOINT_PREFIX = "checkpoint-"

#: In data.json of a trial: how many rows, copies of the longest, its steps have. Nothing is saved.
TRIAL_ROWS = "trial_rows"

#: Set in the environment of workers that `shardwise train` itself started, to that launch's name.
LAUNCH = "SHARDWISE_LAUNCH"

#: Set in the environment of a worker that speaks for its node: the descriptor of its terminal.
CONSOLE = "SHARDWISE_CONSOLE"


def cache_root() -> Path:
    """Where what can be made again is kept: `SHARDWISE_CACHE`, else `~/.cache/shardwise`."""
    stated = os.environ.get("SHARDWISE_CACHE")
    return Path(stated) if stated else Path.home() / ".cache" / "shardwise"


class _File:
    """A file or folder inside the run directory."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: RunDirectory, _: object) -> Path:
        return run.root / self._name


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run and the files that live there.

    Attributes:
        job: the job file as the user wrote it.
        resolved: the job with every default filled in and what each `auto` became, as
            JSON-compatible YAML.
        plan: forecasts; the chosen candidate is what runs.
        environment: versions, devices and measured rates.
        metrics: one JSON object per optimizer step.
        data: which prepared data this run reads, and what was counted of it: `train` and `eval`
            with their sources and what was done with rows, `lengths` before any was cut or dropped,
            `template_from`, `preview` of three rows.
        model: which revision of a model on the hub this run reads.
        measured: what each rank really held and used, read back from live tensors.
        final: folder of the trained model or adapter, in the ecosystem's format.
        merged: folder of the base model with the adapter merged into it, written by `shardwise
            merge`.
        report_json, report_html: forecast beside measurement, for programs and as one
            self-contained page.
        logs: folder of each rank's output, phases and causes of failure.
        places: where each key of the job stands in what the user wrote, for messages.
        events: what rank 0 is doing: one JSON object per phase, each with `time` and `phase`.
        starts: what each start of the run was to do: `first_step`, `hardware`, `execution`,
            `world_size`, `peak_flops`.
        notices: what the user shall read while the run goes on: objects with `time` and `notice`.
        outcome: how rank 0 says the run ended: `outcome`, `signal`, `step`, and whether that step
            was saved.
    """

    root: Path

    job = _File("job.yaml")
    resolved = _File("resolved.yaml")
    plan = _File("plan.json")
    environment = _File("environment.json")
    metrics = _File("metrics.jsonl")
    data = _File("data.json")
    model = _File("model.json")
    measured = _File("measured.json")
    final = _File("final")
    merged = _File("merged")
    report_json = _File("report.json")
    report_html = _File("report.html")
    logs = _File("logs")
    places = _File("logs/places.json")
    events = _File("logs/events.jsonl")
    starts = _File("logs/starts.jsonl")
    notices = _File("logs/notices.jsonl")
    outcome = _File("logs/outcome.json")

    @property
    def typed(self) -> str:
        """The folder as one word of a shell."""
        return shlex.quote(str(self.root))

    @property
    def last_written(self) -> float:
        """When something of its progress was last written, in seconds since 1970; 0: never."""
        files = (self.metrics, self.events, self.plan)
        return max((file.stat().st_mtime for file in files if file.is_file()), default=0)

    def rank_log(self, rank: int) -> Path:
        """Output of one rank."""
        return self.logs / f"rank_{rank}.log"

    def rank_pid(self, rank: int) -> Path:
        """The pid of one rank, written once it listens to signals."""
        return self.logs / f"rank_{rank}.pid"

    def rank_failure(self, rank: int) -> Path:
        """First cause of one rank's failure: `time, rank, phase, error, message, file, line`."""
        return self.logs / f"rank_{rank}.failure.json"

    def rank_standing(self, rank: int) -> Path:
        """Where one rank stood when nothing moved any more."""
        return self.logs / f"rank_{rank}.standing.json"

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint of one step."""
        return self.root / f"{CHECKPOINT_PREFIX}{step}"

    def checkpoints(self) -> list[tuple[int, Path]]:
        """Committed checkpoints as (step, folder), newest first; the reader verifies contents."""
        return [(step, folder) for step, folder in self._of_steps() if (folder / "manifest.json").is_file()]

    def unfinished(self) -> list[str]:
        """Names of checkpoints without a manifest, which is written last, newest first."""
        return [folder.name for _, folder in self._of_steps() if not (folder / "manifest.json").is_file()]

    def _of_steps(self) -> list[tuple[int, Path]]:
        found = [(f.name.removeprefix(CHECKPOINT_PREFIX), f) for f in self.root.glob(f"{CHECKPOINT_PREFIX}*")]
        return sorted(((int(step), folder) for step, folder in found if step.isdigit()), reverse=True)


def write_text(path: Path, text: str) -> None:
    """Writes a file atomically: readers, and a power cut, find the old one or the new one whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}"
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_json(path: Path, data: Any) -> None:
    """`write_text` of JSON with a trailing newline."""
    write_text(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def sync_folder(folder: Path) -> None:
    """Makes a rename inside the folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_line(path: Path, data: dict[str, Any]) -> None:
    """Appends one JSON object as a line, in one write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(data, allow_nan=False) + "\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(line)


def announce(run: RunDirectory, phase: str, **detail: Any) -> None:
    """Notes that rank 0 entered a phase; the command line shows it."""
    append_line(run.events, {"time": time.time(), "phase": phase, **detail})


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """JSON objects of a growing file; a last line that is still being written is left out."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n"):
                return
            try:
                value: Any = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                yield cast(dict[str, Any], value)


def read_metrics(run: RunDirectory) -> list[dict[str, Any]]:
    """One object per optimizer step in order; after a resume, the later record of a step stands."""
    steps = {one["step"]: one for one in read_lines(run.metrics) if isinstance(one.get("step"), int)}
    return [steps[step] for step in sorted(steps)]


def note_start(run: RunDirectory, start: dict[str, Any]) -> None:
    """Adds a line to `RunDirectory.starts` by rewriting the whole file."""
    lines = [*read_lines(run.starts), start]
    write_text(run.starts, "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))


def forget_steps_after(run: RunDirectory, step: int) -> None:
    """Removes the records of later steps, which a resumed run takes again."""
    if run.metrics.is_file():
        kept = [record for record in read_metrics(run) if record["step"] <= step]
        write_text(run.metrics, "".join(json.dumps(record, allow_nan=False) + "\n" for record in kept))


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where the file is missing or is no JSON object."""
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return cast(dict[str, Any], value) if isinstance(value, dict) else None


#: A commit, as the hub calls its revisions.
_REVISION = re.compile("[0-9a-f]{7,64}")


def revision_of(run: RunDirectory, model: str) -> str | None:
    """The revision of a model on the hub that a run has read; None where there is none."""
    known = read_json(run.model) or {}
    revision = known.get("revision")
    is_one = isinstance(revision, str) and _REVISION.fullmatch(revision) is not None
    return revision if is_one and known.get("model") == model else None


def hub_revision(model: str, *, folder: Path) -> str | None:
    """The revision that a folder of the hub's cache holds; None for another folder."""
    return None if folder.parent.name != "snapshots" or Path(model).exists() else folder.name


def note_revision(run: RunDirectory, model: str, *, folder: Path) -> None:
    """Notes which revision of a hub model a run reads, so that later starts read the same."""
    revision = hub_revision(model, folder=folder)
    if revision is not None:
        write_json(run.model, {"model": model, "revision": revision})
