"""Shardwise beside transformers' Trainer and a plain Accelerate loop, full and LoRA, on one process and on two: time
from command to first finished step, tokens per second, time from the last step to the end, and memory. What is wanted
of these is in goals.py; exits 1 where a line says FAIL. A mixture of experts and a hybrid are trained in full; others
run experts by `grouped_mm`, which is the faster of transformers' implementations on a CPU, and its default.

Same model folder, rows, global batch, micro-batch, maximum length, optimizer, clipping, schedule, precision
(float32), number of processes and of threads. Runs take turns (A B C C B A), so that a noisy machine is unfair to none,
and start with empty data caches. All write one line per optimizer step; the same clock here notes when each line
appears. Throughput counts real tokens, from the end of the first step to that of the last: padding is not throughput.

    python benchmarks/run.py                                      # `make bench`
    python benchmarks/run.py --against trainer --processes 2      # a third of it
    python benchmarks/run.py --steps 1 --toy --against trainer    # start and end alone
    python benchmarks/run.py --kinds mixture hybrid --against trainer
    python benchmarks/run.py --objective dpo --against trl        # preferences, beside TRL's DPOTrainer
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from goals import Found, judged, plain_write
from pairs import ANSWER, PROMPT, write_pairs
from resident import peaks_below

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".bench"
GSM8K = ROOT.parent / "shared/data/gsm8k/train.jsonl"
DEMO_ROWS = ROOT / "examples/demo/data/basics.jsonl"
POLL_SECONDS, MEMORY_SECONDS = 0.005, 0.1

#: The plain scripts beside this file, by objective.
PLAIN = {
    "sft": {"trainer": "plain_trainer.py", "accelerate": "plain_accelerate.py"},
    "dpo": {"trl": "plain_trl.py"},
}
TRL = "TRL is not installed here: .venv/bin/pip install trl==1.16.0 datasets"


@dataclass(frozen=True, kw_only=True)
class Work:
    """What all of them train.

    Attributes:
        micro_batch: rows per forward, of preferences pairs; the same for all, because a smaller one pads less.
        leave_open: Shardwise chooses its own micro-batch, as in a job file that does not state one.
    """

    rows: Path
    objective: str = "sft"
    kind: str = "dense"
    processes: int = 1
    steps: int = 8
    global_batch: int = 16
    micro_batch: int = 4
    leave_open: bool = False
    method: str = "full"
    max_length: int = 1024
    learning_rate: float = 5e-4

    @property
    def model(self) -> Path:
        """Its folder."""
        return FOLDER / f"model-{self.kind}"

    @property
    def accumulation(self) -> int:
        """Forwards per optimizer step and process."""
        return self.global_batch // self.micro_batch // self.processes

    @property
    def threads(self) -> int:
        """Of each process."""
        return max(1, len(os.sched_getaffinity(0)) // self.processes)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One run.

    Attributes:
        first_step_seconds: from starting the command to the end of the first optimizer step.
        tokens_per_second: real tokens of the later steps over their wall time; None where there is one step.
        end_seconds: from the end of the last step to that of the command, with the trained model saved.
        peak_bytes: resident memory of its ranks, each at its peak, added up.
        cpu_seconds: of all its processes, to the end.
        disk_seconds: of a plain write of as many bytes, just after.
    """

    first_step_seconds: float
    tokens_per_second: float | None
    end_seconds: float
    peak_bytes: int
    cpu_seconds: float
    disk_seconds: float
    last_loss: float | None


#: Each program's runs.
Timings = dict[str, list[Timing]]

#: Of each figure and each other program: Shardwise's median over its.
Ratios = dict[str, dict[str, float]]


def main() -> None:
    """Makes the model, runs the programs in turns, prints the tables, writes results.json and judges."""
    args = arguments()
    shutil.rmtree(FOLDER, ignore_errors=True)
    work = of_pairs(args) if args.objective == "dpo" else Work(rows=choose_rows())
    work = replace(work, steps=args.steps, leave_open=args.leave_open)
    measured: dict[str, Timings] = {}
    kinds = args.kinds if work.objective == "sft" else [work.kind]
    for kind, method, processes in itertools.product(kinds, args.methods, args.processes):
        if kind in ("mixture", "hybrid") and method != "full":
            continue
        name = method if kind == "dense" else f"dpo {method}" if kind == "words" else kind
        title = f"{name}, {processes} process{'es' if processes > 1 else ''}"
        here = replace(work, kind=kind, method=method, processes=processes)
        if work.objective == "dpo":
            here = replace(here, micro_batch=work.global_batch // processes)
        make_model(here, toy=args.toy)
        measured[title] = run_in_turns(here, args.against, rounds=args.rounds, title=title)
    ratios = write_results(measured)
    lines = [line for title in measured for line in judged(found(title, measured, ratios), toy=args.toy)]
    print("\n".join(["", *(line for _, line in lines)]))
    sys.exit(0 if all(is_good for is_good, _ in lines) else 1)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=Work.steps)
    parser.add_argument("--objective", choices=tuple(PLAIN), default="sft")
    parser.add_argument("--kinds", nargs="+", choices=("dense", "mixture", "hybrid"), default=["dense"])
    parser.add_argument("--methods", nargs="+", choices=("full", "lora"), default=["full", "lora"])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--against", nargs="+", choices=[name for of in PLAIN.values() for name in of])
    parser.add_argument(
        "--toy", action="store_true", help="a model of 2.4 million parameters: start and end, not steps"
    )
    parser.add_argument("--leave-open", action="store_true", help="let Shardwise choose its micro-batch")
    args = parser.parse_args()
    args.against = args.against or list(PLAIN[args.objective])
    unread = set(args.against) - PLAIN[args.objective].keys()
    if unread:
        parser.error(f"--objective {args.objective} is measured against {', '.join(PLAIN[args.objective])}")
    if "trl" in args.against and importlib.util.find_spec("trl") is None:
        parser.error(TRL)
    return args


def found(title: str, measured: dict[str, Timings], ratios: dict[str, Ratios]) -> Found:
    """What is judged."""
    ends = [one.end_seconds - one.disk_seconds for one in measured[title]["shardwise"]]
    other = "trl" if title.startswith("dpo") else "trainer"
    over = {figure: by.get(other) for figure, by in ratios[title].items()}
    return Found(
        title=title,
        first_step=over["first_step_seconds"],
        tokens=over.get("tokens_per_second"),
        memory=over.get("peak_bytes"),
        end_seconds=statistics.median(ends),
        other=other,
    )


def run_in_turns(work: Work, against: list[str], *, rounds: int, title: str) -> Timings:
    """Each program as often as there are rounds, in an order that turns round with each."""
    scripts = PLAIN[work.objective]
    programs = {"shardwise": time_shardwise, **{name: partial(time_plain, script=scripts[name]) for name in against}}
    timings: Timings = {name: [] for name in programs}
    for number in range(rounds):
        for name in list(programs)[:: -1 if number % 2 else 1]:
            folder = FOLDER / f"{name}-{work.kind}-{work.method}-{work.processes}-{number}"
            timings[name].append(programs[name](work, folder))
            print(f"{title}, round {number + 1}  {name:<11}{_shown(timings[name][-1])}", flush=True)
    return timings


def choose_rows() -> Path:
    """GSM8K where it lies beside the checkout, else the demo's own rows."""
    if GSM8K.is_file():
        return GSM8K
    print(f"{os.path.relpath(GSM8K)} is not there; using the demo's rows, which are short: expect other figures")
    return DEMO_ROWS


def of_pairs(args: argparse.Namespace) -> Work:
    """Four pairs a step, in one forward of all processes."""
    batch = 4
    rows = write_pairs(FOLDER / "pairs.jsonl", count=batch * args.steps)
    most = PROMPT + ANSWER + 1
    return Work(rows=rows, objective="dpo", kind="words", global_batch=batch, max_length=most, learning_rate=1e-5)


def make_model(work: Work, *, toy: bool) -> None:
    """A folder with a model of random parameters."""
    if not work.model.exists():
        script = ROOT / "benchmarks/models.py"
        options = ["--rows", str(work.rows), *(["--toy"] if toy else [])]
        subprocess.run([sys.executable, script, work.kind, work.model, *options], check=True)


def time_shardwise(work: Work, folder: Path) -> Timing:
    """`shardwise train` on a job file."""
    run = folder / "run"
    job = {
        "model": str(work.model),
        "data": {"path": str(work.rows), "max_length": work.max_length, "over_long": "truncate"},
        "method": work.method,
        **({} if work.objective == "sft" else {"objective": work.objective}),
        **({} if work.method == "full" else {"lora": {"r": 16, "lora_alpha": 32}}),
        "train": {
            "global_batch_size": work.global_batch,
            "max_steps": work.steps,
            "learning_rate": work.learning_rate,
            "precision": "fp32",
            "micro_batch_size": "auto" if work.leave_open else work.micro_batch,
        },
        "hardware": f"cpu:{work.processes}",
        "layout": "ddp" if work.processes > 1 else "auto",
        "output_dir": str(run),
    }
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text(json.dumps(job), encoding="utf-8")
    command = [str(Path(sys.executable).with_name("shardwise")), "train", str(folder / "job.yaml")]
    return timed(command, metrics=run / "metrics.jsonl", folder=folder, work=work)


def time_plain(work: Work, folder: Path, *, script: str) -> Timing:
    """A plain script: one process by itself, several under torchrun."""
    folder.mkdir(parents=True)
    metrics = folder / "metrics.jsonl"
    options = {
        "model": work.model,
        "rows": work.rows,
        "metrics": metrics,
        "steps": work.steps,
        "processes": work.processes,
        "micro-batch": work.micro_batch,
        "accumulation": work.accumulation,
        "max-length": work.max_length,
        "learning-rate": work.learning_rate,
        "method": work.method,
    }
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={work.processes}"]
    command = [sys.executable, *(torchrun if work.processes > 1 else []), str(ROOT / "benchmarks" / script), "--cpu"]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return timed(command, metrics=metrics, folder=folder, work=work)


def timed(command: list[str], *, metrics: Path, folder: Path, work: Work) -> Timing:
    """Runs a command and notes when each line of its metrics appears."""
    environment = os.environ | {"SHARDWISE_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": str(work.threads)}
    with (folder / "output.log").open("w", encoding="utf-8") as log:
        started = looked = time.monotonic()
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        arrivals: list[float] = []
        most: dict[int, int] = {}
        while not (ended_one := os.wait4(process.pid, os.WNOHANG))[0]:
            new = _count_lines(metrics) - len(arrivals)
            arrivals += [time.monotonic() - started] * new
            if time.monotonic() - looked > MEMORY_SECONDS:
                most |= peaks_below(process.pid)  # of which one that is ending has none
                looked = time.monotonic()
            time.sleep(POLL_SECONDS)
        ended = time.monotonic() - started
    process.returncode, used = os.waitstatus_to_exitcode(ended_one[1]), ended_one[2]
    if process.returncode or len(arrivals) < work.steps:
        sys.exit(f"failed with exit code {process.returncode}; its output: {folder / 'output.log'}")
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    tokens = sum(record["tokens"] for record in records[1:])
    return Timing(
        first_step_seconds=arrivals[0],
        tokens_per_second=tokens / (arrivals[-1] - arrivals[0]) if work.steps > 1 else None,
        end_seconds=ended - arrivals[-1],
        peak_bytes=sum(sorted(most.values())[-work.processes :]),
        cpu_seconds=used.ru_utime + used.ru_stime,
        disk_seconds=plain_write(folder),
        last_loss=records[-1]["loss"],
    )


def _count_lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def _shown(timing: Timing) -> str:
    speed = "" if timing.tokens_per_second is None else f"{timing.tokens_per_second:8.0f} tokens/s"
    memory = f"{timing.peak_bytes / 2**20:6.0f} MiB"
    return f"first step after {timing.first_step_seconds:6.2f} s {speed}   end {timing.end_seconds:6.2f} s {memory}"


#: Figures of a run, and what they are called.
FIGURES = {
    "first_step_seconds": "s to the first step",
    "tokens_per_second": "real tokens/s",
    "end_seconds": "s from the last step",
    "peak_bytes": "bytes of memory",
    "cpu_seconds": "s of processors",
}


def write_results(measured: dict[str, Timings]) -> dict[str, Ratios]:
    """Medians and their ratios to Shardwise's, printed and written; the ratios."""
    ratios = {title: _table(timings, title=title) for title, timings in measured.items()}
    runs = {title: {name: [asdict(one) for one in of] for name, of in by.items()} for title, by in measured.items()}
    results = FOLDER / "results.json"
    results.write_text(json.dumps({"ratios": ratios, "runs": runs}, indent=2) + "\n", encoding="utf-8")
    print(f"\nwritten to {os.path.relpath(results)}; each run's output lies beside it")
    return ratios


def _table(timings: Timings, *, title: str) -> Ratios:
    """Prints the medians; returns the ratios."""
    others = [name for name in timings if name != "shardwise"]
    ratios: Ratios = {}
    print(f"\n{title + ', median':<26}{'shardwise':>14}" + "".join(f"{name:>14}{'ratio':>8}" for name in others))
    for figure, label in FIGURES.items():
        found = {name: [getattr(one, figure) for one in runs] for name, runs in timings.items()}
        if None in found["shardwise"]:
            continue
        medians = {name: statistics.median(values) for name, values in found.items()}
        ratios[figure] = {name: medians["shardwise"] / medians[name] for name in others}
        shown = "".join(f"{medians[name]:>14.1f}{ratios[figure][name]:>8.2f}" for name in others)
        print(f"{label:<26}{medians['shardwise']:>14.1f}{shown}")
    return ratios


if __name__ == "__main__":
    main()
