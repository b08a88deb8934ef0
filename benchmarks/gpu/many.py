"""Sections for two and more GPUs (`make gpu-many`): links, each layout's parity and speed, failures of one rank, resume
on other layouts, starts, torchrun."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from dataclasses import replace
from threading import Semaphore
from typing import Any

from bench import GIB, Bench, Figures, Ran, figures, named, write_job
from right import SMALL, apart, ended, kills, processes_of

LONG = {"length": 512, "steps": 200}
SHARED = "/dev/shm"  # noqa: S108 - how large it is, not what is in it
LAYOUTS = ("ddp", "fsdp", "zero1", "zero2", "pp", "tp", "ddp_without_nvls")
FP32 = {**SMALL, "train.precision": "fp32"}


def links(bench: Bench) -> Figures:
    """GB/s of collectives, and the shared memory that NCCL and data workers need."""
    told: Figures = {"shared_memory_gib": shutil.disk_usage(SHARED).free / GIB}
    run = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={bench.processes}")
    return told | bench.script("links.py", bench.device, before=run)


def verify(bench: Bench) -> Figures:
    """`shardwise verify`: a toy under one layout of each kind is the same training as on one process, in float32."""
    folder = bench.folder / "verify"
    write_job(bench, folder, "toy", length=512, steps=20, keys={**FP32, "train.micro_batch_size": 1})
    return {"exit": bench.shardwise("verify", "verify", folder / "job.yaml", "--tolerance", 1e-4).exit}


def layouts(bench: Bench) -> Figures:
    """0.5B under each layout: tokens/s, forecasts, and the same losses; once more without NVLink's own reductions."""
    told: Figures = {}
    losses = []
    for name in LAYOUTS if bench.is_cuda else LAYOUTS[:2]:
        strategy, _, without = name.partition("_")
        environment = {"NCCL_NVLS_ENABLE": "0"} if without else {}
        ran = bench.train(f"layouts-{name}", "0.5b", keys={**SMALL, "layout": strategy}, environment=environment)
        told |= named(name, figures(ran))
        losses.append(ran.losses)
    return {**told, "losses_apart": max(apart(one, losses[0]) for one in losses)}


def orders(bench: Bench) -> Figures:
    """Each order of a pipeline, 16 micro-batches, few and many hardware queues: none hangs, all train the same."""
    told: Figures = {}
    losses = []
    for order in ("1f1b", "gpipe", "interleaved", "zero_bubble"):
        for queues in ("1", "32") if bench.is_cuda else ("1",):
            keys = {"layout.pp": bench.processes, "layout.schedule": order, "train.micro_batch_size": 1}
            environment = {"CUDA_DEVICE_MAX_CONNECTIONS": queues}
            how: dict[str, Any] = {"length": 512, "batch": 16, "steps": 40, "keys": keys, "environment": environment}
            ran = bench.train(f"orders-{order}-{queues}", "toy", **how)
            told[f"{order}_{queues}_queues.exit"] = ran.exit
            losses.append(ran.losses)
    return {**told, "losses_apart": max(apart(one, losses[0]) for one in losses)}


def rank_killed(bench: Bench) -> Figures:
    """Rank 1 is killed."""
    return _rank_lost(bench, "rank_killed", signal.SIGKILL)


def rank_stopped(bench: Bench) -> Figures:
    """Rank 1 no longer gets on."""
    return _rank_lost(bench, "rank_stopped", signal.SIGSTOP)


def _rank_lost(bench: Bench, name: str, number: int) -> Figures:
    run = bench.folder / name / "run"
    how: dict[str, Any] = {"environment": {"SHARDWISE_STALL_SECONDS": "20"}, "keys": {**SMALL, "layout": "ddp"}, **LONG}
    ran = bench.train(name, "toy", at=(5, kills(run, 1, number)), **how)
    told = {"exit": ran.exit, "names_rank": "rank 1" in ran.output, "seconds_to_end": ran.acted_seconds}
    return {**told, "processes_left": processes_of(run)}


def moved(bench: Bench) -> Figures:
    """A run that begins under fsdp, is stopped and ends under a pipeline has the losses of one that was not."""
    how: dict[str, Any] = {"keys": {**FP32, "layout": "fsdp"}, **LONG}
    whole = bench.train("moved-whole", "toy", **how)
    stopped = bench.train("moved", "toy", at=(5, ended), **how)
    again = bench.train("moved", "toy", again=("layout=pp",))
    return {"stopped_exit": stopped.exit, "again.exit": again.exit, "losses_apart": apart(again.losses, whole.losses)}


def starts(bench: Bench) -> Figures:
    """Starts, every second of them ended by SIGTERM: each ends as it should, soon, and leaves no process."""
    good, slowest, count = 0, 0.0, 10 if bench.is_cuda else 2
    for number in range(count):
        stop = number % 2 == 1
        strategy = ("fsdp", "pp")[number // 2 % 2]
        at = {"at": (3, ended)} if stop else {}
        how: dict[str, Any] = {"length": 512, "steps": 200 if stop else 5, "keys": {**SMALL, "layout": strategy}}
        ran = bench.train(f"starts-{number}", "toy", **how, **at)
        good += ran.exit == (143 if stop else 0) and processes_of(ran.folder / "run") == 0
        slowest = max(slowest, ran.acted_seconds or 0.0)
    return {"good_exits": good / count, "slowest_stop_seconds": slowest}


def torchrun(bench: Bench) -> Figures:
    """Two torchruns of one process each, as on two machines, each seeing one device: the losses of one launch."""
    keys = {**FP32, "layout": "ddp"}
    together = bench.train("torchrun-one", "toy", length=512, keys=keys)
    folder = bench.folder / "torchrun"
    write_job(bench, folder, "toy", length=512, keys=keys)

    both = replace(bench, slots=Semaphore(2))

    def machine(rank: int) -> Ran:
        sees = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")[rank] if bench.is_cuda else ""
        rendezvous = ("--nnodes=2", f"--node-rank={rank}", "--nproc-per-node=1", "--master-port=29511")
        command = [sys.executable, "-m", "torch.distributed.run", *rendezvous, "-m", "shardwise", "train"]
        where = folder if rank == 0 else bench.folder / "torchrun-other"
        return both.timed([*command, folder / "job.yaml"], folder=where, environment={"CUDA_VISIBLE_DEVICES": sees})

    first, other = bench.map(machine, [0, 1])
    return {"exit": first.exit or other.exit, "losses_apart": apart(first.losses, together.losses)}
