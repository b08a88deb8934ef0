"""What every section works with: where files lie, how long it may take, and jobs that are run and read back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock, Semaphore
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GIB = 2**30
POLL_SECONDS = 0.005
#: On CPUs rows are so many times shorter.
SHORTER = 32
#: On CPUs sections may take so many times longer.
SLOWER = 4
#: `watched.py` beside this file, started by `api.train` in place of Shardwise's own worker.
WATCHED = """
import sys
from shardwise import api
from shardwise.launch.processes import command
command.WORKER = "watched"
api.train(sys.argv[1])
"""
MAKING = Lock()

Figures = dict[str, Any]


class LateError(Exception):
    """The time for all sections is over."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A command that has ended.

    Attributes:
        exit: None where it took longer than it may and was killed.
        first_step_seconds: from the command to its first line of metrics; None where there is none.
        end_seconds: from its last line of metrics to its end.
        acted_seconds: from what was done to it (a signal) to its end.
    """

    folder: Path
    exit: int | None
    output: str
    seconds: float
    first_step_seconds: float | None
    end_seconds: float | None
    acted_seconds: float | None

    def read(self, name: str) -> Any:
        """A JSON file of the run directory."""
        return json.loads((self.folder / "run" / name).read_text(encoding="utf-8"))

    @property
    def metrics(self) -> list[Figures]:
        """One object for each step."""
        path = self.folder / "run/metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def losses(self) -> list[float]:
        """Of each step."""
        return [step["loss"] for step in self.metrics]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where and how long sections measure.

    Attributes:
        over: of `time.monotonic()`, for all sections.
        left: seconds that the commands of this section may still take, in a list of one.
        slots: as many commands run at a time.
        known: figures of the sections before, by their full names.
    """

    folder: Path
    device: str
    over: float
    processes: int = 1
    left: list[float] = field(default_factory=lambda: [float("inf")])
    slots: Semaphore = field(default_factory=lambda: Semaphore(1))
    known: Figures = field(default_factory=dict)

    @property
    def is_cuda(self) -> bool:
        """GPUs are measured, not this script tested on tiny models."""
        return self.device == "cuda"

    def within(self, seconds: float) -> Bench:
        """The same for commands that take so long at most, together; longer on CPUs, which other tests may share."""
        return replace(self, left=[seconds if self.is_cuda else SLOWER * seconds])

    def length(self, tokens: int) -> int:
        """Tokens of a row."""
        return tokens if self.is_cuda else tokens // SHORTER

    def rows(self, tokens: int) -> Path:
        """Rows of at least so many tokens; 0: documents of many lengths."""
        return self.folder / f"rows-{tokens}.jsonl"

    def map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Results in order; as many commands at a time as there are slots."""
        with ThreadPoolExecutor(len(items)) as threads:
            return list(threads.map(work, items))

    def models(self, names: Sequence[str]) -> None:
        """Makes rows, and models that are not there yet."""
        with MAKING:
            lacking = [name for name in names if not (self.folder / "models" / name).exists()]
            if lacking:
                self.script("models.py", self.folder, self.device, *lacking)

    def script(self, name: str, *arguments: object, before: Sequence[object] = ()) -> Figures:
        """The JSON object that a script beside this file prints last."""
        ran = self.timed([sys.executable, *before, HERE / name, *arguments], folder=self.folder / f"{name}.output")
        last = (ran.output.strip().splitlines() or [""])[-1]
        if ran.exit != 0:
            raise RuntimeError(f"{name} ended with {ran.exit}: {last}")
        return json.loads(last)

    def shardwise(self, name: str, *words: object) -> Ran:
        """A verb."""
        return self.timed([sys.executable, "-m", "shardwise", *words], folder=self.folder / name)

    def train(
        self,
        name: str,
        model: str,
        *,
        again: Sequence[str] | None = None,
        watch: str = "",
        environment: dict[str, str] | None = None,
        at: tuple[int, Callable[[subprocess.Popen[bytes]], None]] | None = None,
        **how: Any,
    ) -> Ran:
        """`shardwise train`, in a folder of the run's name.

        Args:
            again: goes on with the run that is there, with these keys set anew.
            watch: what `watched.py` does to the rank.
            how: what `write_job` takes.
        """
        folder = self.folder / name
        if again is None:
            shutil.rmtree(folder, ignore_errors=True)
            write_job(self, folder, model, **how)
        words = ["-c", WATCHED] if watch else ["-m", "shardwise", "train"]
        sets = [word for key in again or () for word in ("--set", key)]
        environment = (environment or {}) | {"WATCH": watch}
        command = [sys.executable, *words, folder / "job.yaml", *sets]
        return self.timed(command, folder=folder, environment=environment, at=at)

    def timed(
        self,
        command: Sequence[object],
        *,
        folder: Path,
        environment: dict[str, str] | None = None,
        at: tuple[int, Callable[[subprocess.Popen[bytes]], None]] | None = None,
    ) -> Ran:
        """Runs a command, and notes when lines of FOLDER/run/metrics.jsonl appear.

        Args:
            folder: for its output; made.
            at: after how many lines something is done to it, and what.

        Raises:
            LateError: the time for all sections was over before it ended.
            TimeoutError: nothing is left of the section's.
        """
        folder.mkdir(parents=True, exist_ok=True)
        metrics, arrivals, acted = folder / "run/metrics.jsonl", list[float](), None
        with self.slots, (folder / "output.log").open("wb") as log:
            began, before = time.monotonic(), _lines(metrics)
            until = min(self.over, began + self.left[0])
            if until <= began:
                raise LateError if began >= self.over else TimeoutError("the section's time was over")
            process = subprocess.Popen(
                [str(word) for word in command],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment() | (environment or {}),
                start_new_session=True,
            )
            try:
                while process.poll() is None and time.monotonic() < until:
                    now = time.monotonic() - began
                    arrivals += [now] * (_lines(metrics) - before - len(arrivals))
                    if at is not None and acted is None and len(arrivals) >= at[0]:
                        at[1](process)
                        acted = now
                    time.sleep(POLL_SECONDS)
            finally:
                code = process.poll()
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            took = time.monotonic() - began
            self.left[0] -= took
        if code is None and time.monotonic() >= self.over:
            raise LateError
        return Ran(
            folder=folder,
            exit=code,
            output=(folder / "output.log").read_text(encoding="utf-8", errors="replace"),
            seconds=took,
            first_step_seconds=arrivals[0] if arrivals else None,
            end_seconds=took - arrivals[-1] if arrivals else None,
            acted_seconds=None if acted is None else took - acted,
        )

    def _environment(self) -> dict[str, str]:
        """No network, no installation of Shardwise, and as many GPUs as are to be measured."""
        paths = [str(ROOT / "src"), str(HERE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(self.processes)))
        return os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "CUDA_VISIBLE_DEVICES": ",".join(visible.split(",")[: self.processes]),
            "HF_HUB_OFFLINE": "1",
            "SHARDWISE_CACHE": str(self.folder / "cache"),
        }


def write_job(
    bench: Bench,
    folder: Path,
    model: str,
    *,
    length: int = 2048,
    packed: bool = False,
    method: str = "full",
    batch: int = 8,
    steps: int = 8,
    keys: dict[str, Any] | None = None,
) -> None:
    """FOLDER/job.yaml, for FOLDER/run.

    Args:
        model: a name of `models.SHAPES`.
        keys: further ones, `train.micro_batch_size` say.
    """
    rows = bench.rows(0 if packed else length)
    job: Figures = {
        "model": str(bench.folder / "models" / model),
        "method": method,
        "data": {"path": str(rows), "max_length": bench.length(length), "over_long": "truncate", "packing": packed},
        "train": {"global_batch_size": batch, "max_steps": steps, "learning_rate": 1e-5},
        "output_dir": str(folder / "run"),
        **({} if bench.is_cuda else {"hardware": f"cpu:{bench.processes}"}),
    }
    for key, value in (keys or {}).items():
        above, _, last = key.rpartition(".")
        (job.setdefault(above, {}) if above else job)[last] = value
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.yaml").write_text(json.dumps(job), encoding="utf-8")


def figures(ran: Ran) -> Figures:
    """What a finished run says of itself; the exit code and its last line where it did not finish."""
    if ran.exit != 0:
        last = ran.output.strip().splitlines()[-1:] or [""]
        return {"exit": "killed when its time was over" if ran.exit is None else ran.exit, "said": last[0][:200]}
    told = {row["what"]: row for row in ran.read("report.json")["comparisons"]}
    memory, step, ranks = told["peak memory"], told["step time"], ran.read("measured.json")["ranks"]
    found: Figures = {
        "exit": 0,
        "tokens_per_second": told["throughput"]["measured"],
        "peak_gib": memory["measured"] / GIB,
        "memory_error": memory["error_percent"] / 100,
        "time_error": step["error_percent"] / 100,
        "first_step_seconds": ran.first_step_seconds,
        "end_seconds": ran.end_seconds,
        "execution": _execution(ran.read("plan.json")),
    }
    if "device_used_bytes" in ranks[0]:
        found["reserved_gib"] = max(rank["peak_reserved_bytes"] for rank in ranks) / GIB
        found["driver_gib"] = max(rank["device_used_bytes"] for rank in ranks) / GIB - found["reserved_gib"]
    return found


def named(prefix: str, found: Figures) -> Figures:
    """Figures under longer names."""
    return {f"{prefix}.{name}": figure for name, figure in found.items()}


def _execution(plan: Figures) -> str:
    one = plan["candidates"][plan["chosen"]]
    words = [f"{one['micro_batch_size']} x {one['gradient_accumulation_steps']}", one["strategy"], one["precision"]]
    words += [f"recompute {one['gradient_checkpointing']}", "compiled" if one["compile"] is True else "eager"]
    return ", ".join(words + ([f"offload {one['offload']}"] if one["offload"] != "none" else []))


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0
