"""Shardwise beside a plain Accelerate loop: tokens per second, and time from command to first finished step.

Same model folder, rows, global batch, micro-batch, maximum length, optimizer, clipping, schedule, precision
(float32), number of processes and of threads. Runs take turns (A B B A), so that a noisy machine is unfair to neither,
and start with empty data caches. Both write one line per optimizer step; the same clock here notes when each line
appears. Throughput counts real tokens, from the end of the first step to that of the last: padding is not throughput.

    python benchmarks/run.py            # `make bench`
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".bench"
GSM8K = ROOT.parent / "shared/data/gsm8k/train.jsonl"
DEMO_ROWS = ROOT / "examples/demo/data/basics.jsonl"
PROCESSES = 2
POLL_SECONDS = 0.005


@dataclass(frozen=True, kw_only=True)
class Work:
    """What both train.

    Attributes:
        micro_batch: rows per forward; the same for both, because a smaller one pads less.
        leave_open: Shardwise chooses its own micro-batch, as in a job file that does not state one.
    """

    rows: Path
    model: Path = FOLDER / "model"
    steps: int = 8
    global_batch: int = 16
    micro_batch: int = 4
    leave_open: bool = False
    max_length: int = 1024
    learning_rate: float = 5e-4

    @property
    def accumulation(self) -> int:
        """Forwards per optimizer step and process of the Accelerate loop."""
        return self.global_batch // self.micro_batch // PROCESSES


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One run.

    Attributes:
        first_step_seconds: from starting the command to the end of the first optimizer step.
        tokens_per_second: real tokens of the later steps over their wall time.
    """

    first_step_seconds: float
    tokens_per_second: float
    last_loss: float


def main() -> None:
    """Makes the model, runs both in turns, prints the table and writes results.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=Work.steps)
    parser.add_argument("--leave-open", action="store_true", help="let Shardwise choose its micro-batch")
    args = parser.parse_args()
    work = Work(rows=choose_rows(), steps=args.steps, leave_open=args.leave_open)
    shutil.rmtree(FOLDER, ignore_errors=True)
    make_model(work)
    programs: dict[str, Callable[[Work, Path], Timing]] = {"shardwise": time_shardwise, "accelerate": time_accelerate}
    timings: dict[str, list[Timing]] = {name: [] for name in programs}
    for number in range(args.rounds):
        for name, program in sorted(programs.items(), reverse=number % 2 == 0):
            timings[name].append(program(work, FOLDER / f"{name}-{number}"))
            print(f"round {number + 1}  {name:<11}{_shown(timings[name][-1])}", flush=True)
    report(timings)


def choose_rows() -> Path:
    """GSM8K where it lies beside the checkout, else the demo's own rows."""
    if GSM8K.is_file():
        return GSM8K
    print(f"{os.path.relpath(GSM8K)} is not there; using the demo's rows, which are short: expect other figures")
    return DEMO_ROWS


def make_model(work: Work) -> None:
    """A Llama of 25 million random parameters, with a tokenizer trained on the rows."""
    script = ROOT / "examples/demo/make_model.py"
    sizes = ("--vocabulary-size", "8000", "--hidden-size", "512", "--num-layers", "6", "--max-length", "1024")
    subprocess.run([sys.executable, script, work.model, "--rows", work.rows, *sizes], check=True)


def time_shardwise(work: Work, folder: Path) -> Timing:
    """`shardwise train` on a job file."""
    run = folder / "run"
    job = {
        "model": str(work.model),
        "data": {"path": str(work.rows), "max_length": work.max_length, "over_long": "truncate"},
        "method": "full",
        "train": {
            "global_batch_size": work.global_batch,
            "max_steps": work.steps,
            "learning_rate": work.learning_rate,
            "precision": "fp32",
            "micro_batch_size": "auto" if work.leave_open else work.micro_batch,
        },
        "hardware": f"cpu:{PROCESSES}",
        "layout": "ddp",
        "output_dir": str(run),
    }
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text(json.dumps(job), encoding="utf-8")
    command = [str(Path(sys.executable).with_name("shardwise")), "train", str(folder / "job.yaml")]
    return timed(command, metrics=run / "metrics.jsonl", folder=folder, steps=work.steps)


def time_accelerate(work: Work, folder: Path) -> Timing:
    """The plain loop under torchrun, which is how Accelerate starts several CPU processes without MPI."""
    folder.mkdir(parents=True)
    metrics = folder / "metrics.jsonl"
    options = {
        "model": work.model,
        "rows": work.rows,
        "metrics": metrics,
        "steps": work.steps,
        "processes": PROCESSES,
        "micro-batch": work.micro_batch,
        "accumulation": work.accumulation,
        "max-length": work.max_length,
        "learning-rate": work.learning_rate,
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
    command += [str(ROOT / "benchmarks/plain_accelerate.py"), "--cpu"]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return timed(command, metrics=metrics, folder=folder, steps=work.steps)


def timed(command: list[str], *, metrics: Path, folder: Path, steps: int) -> Timing:
    """Runs a command and notes when each line of its metrics appears."""
    threads = max(1, len(os.sched_getaffinity(0)) // PROCESSES)
    environment = os.environ | {"SHARDWISE_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": str(threads)}
    with (folder / "output.log").open("w", encoding="utf-8") as log:
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        arrivals: list[float] = []
        while process.poll() is None:
            new = _count_lines(metrics) - len(arrivals)
            arrivals += [time.monotonic() - started] * new
            time.sleep(POLL_SECONDS)
    if process.returncode or len(arrivals) < steps:
        sys.exit(f"failed with exit code {process.returncode}; its output: {folder / 'output.log'}")
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    tokens = sum(record["tokens"] for record in records[1:])
    return Timing(
        first_step_seconds=arrivals[0],
        tokens_per_second=tokens / (arrivals[-1] - arrivals[0]),
        last_loss=records[-1]["loss"],
    )


def _count_lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def _shown(timing: Timing) -> str:
    speed, first = timing.tokens_per_second, timing.first_step_seconds
    return f"{speed:8.0f} tokens/s   first step after {first:6.2f} s   last loss {timing.last_loss:.3f}"


def report(timings: dict[str, list[Timing]]) -> None:
    """Medians and their ratios, printed and written."""
    speed = {name: statistics.median(t.tokens_per_second for t in runs) for name, runs in timings.items()}
    first = {name: statistics.median(t.first_step_seconds for t in runs) for name, runs in timings.items()}
    ratios = {
        "tokens_per_second": speed["shardwise"] / speed["accelerate"],
        "first_step_seconds": first["shardwise"] / first["accelerate"],
    }
    print(f"\n{'median':<22}{'shardwise':>12}{'accelerate':>12}{'ratio':>8}")
    for label, values, ratio in (
        ("real tokens/s", speed, ratios["tokens_per_second"]),
        ("s to the first step", first, ratios["first_step_seconds"]),
    ):
        print(f"{label:<22}{values['shardwise']:>12.1f}{values['accelerate']:>12.1f}{ratio:>8.2f}")
    runs = {name: [asdict(timing) for timing in of] for name, of in timings.items()}
    results = FOLDER / "results.json"
    results.write_text(json.dumps({"ratios": ratios, "runs": runs}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {os.path.relpath(results)}; each run's output lies beside it")


if __name__ == "__main__":
    main()
