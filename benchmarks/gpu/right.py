"""Sections that ask whether it is right: memory as forecast, numbers, results, resume, failures, recompute, offload.

Each takes a Bench and returns figures by name. They may run side by side: nothing here is timed but the end of a run.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import Bench, Figures, Ran, figures, named

LONG = {"length": 512, "steps": 100}
#: 2 micro-batches of 2 rows, so that a step is more than one.
SMALL = {"train.micro_batch_size": 2}


def apart(left: list[float], right: list[float]) -> float:
    """The largest relative difference; infinite where there is nothing to compare."""
    if not left or len(left) != len(right):
        return float("inf")
    return max(abs(a - b) / max(abs(b), 1e-9) for a, b in zip(left, right, strict=True))


def memory(bench: Bench) -> Figures:
    """0.5B under each recompute, plain and compiled: forecast beside measured, and the same losses."""
    recomputes = ("none", "full", "selective", "offloaded")
    cells = [(recompute, compiled) for recompute in recomputes for compiled in (False, True)]
    cells = [*cells, ("selective_offloaded", True)] if bench.is_cuda else cells[::2]

    def run(cell: tuple[str, bool]) -> Ran:
        name = f"memory-{cell[0]}-{'compiled' if cell[1] else 'eager'}"
        keys = {**SMALL, "train.gradient_checkpointing": cell[0], "train.compile": cell[1]}
        return bench.train(name, "0.5b", batch=4, steps=5, keys=keys)

    told: Figures = {}
    runs = bench.map(run, cells)
    for ran in runs:
        found = figures(ran)
        kept = ("exit", "said", "memory_error", "peak_gib", "reserved_gib")
        told |= named(ran.folder.name.removeprefix("memory-"), {key: found[key] for key in kept if key in found})
    return {**told, "losses_apart": max(apart(ran.losses, runs[0].losses) for ran in runs)}


def numbers(bench: Bench) -> Figures:
    """A toy in float32 and in mixed precision on the device, beside float32 on the CPU."""
    ways = {"cpu": {"hardware": "cpu:1", "train.precision": "fp32"}, "fp32": {"train.precision": "fp32"}}
    ways["mixed"] = {"train.precision": "mixed"}

    def run(way: str) -> Ran:
        return bench.train(f"numbers-{way}", "toy", length=512, batch=8, steps=20, keys={**SMALL, **ways[way]})

    runs = dict(zip(ways, bench.map(run, list(ways)), strict=True))
    told: Figures = {}
    for way in ("fp32", "mixed"):
        told[f"{way}.exit"] = runs[way].exit
        told[f"{way}.loss_apart"] = apart(runs[way].losses, runs["cpu"].losses)
        norms = [[step["grad_norm"] for step in runs[name].metrics] for name in (way, "cpu")]
        told[f"{way}.grad_norm_apart"] = apart(*norms)
    return told


def final(bench: Bench) -> Figures:
    """A toy's `final/`, opened as users do, has the loss that the run's own evaluation had."""
    keys = {**SMALL, "train.precision": "fp32", "data.eval_path": str(bench.rows(512)), "train.learning_rate": 1e-3}
    ran = bench.train("final", "toy", length=512, batch=8, steps=4, keys=keys)
    if ran.exit != 0:
        return figures(ran)
    where = (ran.folder / "run/final", bench.rows(512), bench.length(512), bench.device)
    opened = bench.script("opened.py", *where)["loss"]
    return {"exit": ran.exit, "loss": opened, "loss_apart": apart([opened], [ran.metrics[-1]["eval_loss"]])}


def resume(bench: Bench) -> Figures:
    """A deterministic run with dropout, stopped by SIGTERM and gone on with, ends in the same bytes as one that was
    not stopped."""
    keys = {**SMALL, "train.full_determinism": True, "lora.lora_dropout": 0.1}
    whole = bench.train("resume-whole", "toy", method="lora", batch=4, keys=keys, **LONG)
    stopped = bench.train("resume", "toy", method="lora", batch=4, keys=keys, at=(3, ended), **LONG)
    told = {"whole.exit": whole.exit, "stopped_exit": stopped.exit, "stop_seconds": stopped.acted_seconds}
    outcome = stopped.read("logs/outcome.json") if stopped.exit == 143 else {}
    told["steps_not_saved"] = len(stopped.metrics) - outcome.get("saved_step", -1)
    again = bench.train("resume", "toy", again=())
    told["again.exit"] = again.exit
    digests = [_digest(ran.folder / "run/final/adapter_model.safetensors") for ran in (whole, again)]
    return {**told, "same_bytes": None not in digests and digests[0] == digests[1]}


def failures(bench: Bench) -> Figures:
    """Exit codes and sentences: a rank that is killed, a wrong key, a model that is too large, memory that runs out."""
    run = bench.folder / "failures/run"
    killed = bench.train("failures", "toy", keys=SMALL, at=(3, kills(run, 0)), **LONG)
    told: Figures = {
        "killed.exit": killed.exit,
        "killed.names_cause": "SIGKILL" in killed.output,
        "killed.processes_left": processes_of(run),
    }
    told["wrong_key.exit"] = bench.train("wrong_key", "toy", keys={"train.learning_rat": 1}).exit
    plan = ("plan", "--model", "llama-3.1-405b", *(() if bench.is_cuda else ("--hardware", "cpu:1")))
    told["too_large.exit"] = bench.shardwise("too_large", *plan).exit
    if bench.is_cuda:
        little = {"FRACTION": "0.1"}
        ran = bench.train("out_of_memory", "0.5b", watch="little memory", environment=little, keys=SMALL)
        told["out_of_memory.exit"] = ran.exit
        told["out_of_memory.sentence"] = re.search(r"out of memory: planned .* measured .* next: --set", ran.output)
        told["out_of_memory.sentence"] = told["out_of_memory.sentence"] is not None
    return told


def recompute(bench: Bench) -> Figures:
    """How often attention is computed: selective recompute keeps its results, full recompute does not."""
    told: Figures = {}
    for kind in ("selective", "full"):
        keys = {**SMALL, "train.gradient_checkpointing": kind, "train.compile": False}
        how: dict[str, Any] = {"length": 512, "batch": 4, "steps": 3, "keys": keys}
        ran = bench.train(f"recompute-{kind}", "toy", watch="attention", **how)
        blocks = ran.read("plan.json")["model"]["num_layers"]
        told[f"{kind}_attention"] = ran.read("watched.json")["count"] / (blocks * 2 * 3)
    return told


def offload(bench: Bench) -> Figures:
    """0.5B with weights and optimizer states in host memory: the same losses, and memory as forecast."""
    keys = {**SMALL, "train.gradient_checkpointing": "full"}

    def run(kind: str) -> Ran:
        return bench.train(f"offload-{kind}", "0.5b", batch=4, steps=4, keys={**keys, "train.offload": kind})

    plain, offloaded = bench.map(run, ["none", "all"])
    found = figures(offloaded)
    kept = {key: found[key] for key in ("exit", "said", "memory_error", "peak_gib", "execution") if key in found}
    return {**kept, "losses_apart": apart(offloaded.losses, plain.losses)}


def syncs(bench: Bench) -> Figures:
    """How often the host waits for the device in a step of four micro-batches: longer run less shorter run."""
    if not bench.is_cuda:
        return {}
    steps, counts = (4, 12), []
    for number in steps:
        ran = bench.train(f"syncs-{number}", "toy", watch="syncs", length=512, batch=8, steps=number, keys=SMALL)
        counts.append(ran.read("watched.json")["count"])
    return {"each_step": (counts[1] - counts[0]) / (steps[1] - steps[0])}


def ended(process: subprocess.Popen[bytes]) -> None:
    """As a cluster ends a run."""
    process.send_signal(signal.SIGTERM)


def kills(run: Path, rank: int, number: int = signal.SIGKILL) -> Callable[[object], None]:
    """Sends a signal to a rank."""
    return lambda _: os.kill(int((run / f"logs/rank_{rank}.pid").read_text().split()[0]), number)


def processes_of(run: Path) -> int:
    """How many processes have a run directory among their arguments."""
    count = 0
    for arguments in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += os.fsencode(run) in arguments.read_bytes().split(b"\0")
        except OSError:
            continue
    return count


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None
