"""Sections that time: the machine, three headline jobs, start and end, the planner's choice, packing, other trainers.

Each takes a Bench and returns figures by name; each runs while nothing else does.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from importlib.util import find_spec
from typing import Any

from bench import GIB, HERE, Bench, Figures, LateError, figures, named
from goals import plain_write

from shardwise.catalog.gpus import find_gpu
from shardwise.errors import HardwareError

#: What is stated of the headline jobs, as the other trainers are told: micro-batch and recompute.
PLAIN = {"train.micro_batch_size": 2, "train.gradient_checkpointing": "none"}
#: Of CodeLlama-34B in bfloat16; written and read again at so much a second at least.
WEIGHTS_BYTES, DISK_BYTES_PER_SECOND = 68e9, 250e6


def machine(bench: Bench) -> Figures:
    """What doctor says, whether the catalogue knows the GPU and its memory, and ceilings."""
    told = json.loads(bench.shardwise("doctor", "doctor", "--json").output)
    found: Figures = {"can_train": told["can_train"], **bench.script("ceilings.py", bench.device)}
    total = found.pop("total_bytes", None)
    if bench.is_cuda:
        found["name"] = told["gpus"][0]["name"]
        try:
            catalogue = find_gpu(found["name"]).gpu.memory_bytes
        except HardwareError:
            return {**found, "known": False, "memory_of_catalogue": "the catalogue does not know this GPU"}
        found |= {"known": True, "memory_of_catalogue": total / catalogue}
    return found


def lora_8b(bench: Bench) -> Figures:
    """8B LoRA, the work that the other trainers are given."""
    return figures(bench.train("lora_8b", "8b", method="lora", keys=PLAIN))


def lora_8b_recompute(bench: Bench) -> Figures:
    """8B LoRA where memory is short: what compiled blocks save waits in the host's memory."""
    kind = "selective_offloaded" if bench.is_cuda else "offloaded"
    keys = {"train.micro_batch_size": 2, "train.gradient_checkpointing": kind}
    return figures(bench.train("lora_8b_recompute", "8b", method="lora", keys=keys))


def full_1b(bench: Bench) -> Figures:
    """1B, every weight, and its end above a plain write of as many bytes."""
    ran = bench.train("full_1b", "1b", keys={**PLAIN, "train.micro_batch_size": 4})
    found = figures(ran)
    if ran.exit == 0 and ran.end_seconds is not None:
        found["end_above_disk_seconds"] = ran.end_seconds - plain_write(ran.folder)
    return found


def start(bench: Bench) -> Figures:
    """A toy from command to first step, and from its last step to the end, beside Trainer; each twice, in turns."""
    runs: dict[str, list[Any]] = {"shardwise": [], "trainer": []}
    for turn in range(2 if bench.is_cuda else 1):
        empty = {"SHARDWISE_CACHE": str(bench.folder / f"empty-{turn}")}
        mine = bench.train(f"start-{turn}", "toy", length=512, keys=PLAIN, environment=empty)
        runs["shardwise"].append(mine)
        runs["trainer"].append(_peer(bench, "trainer", "toy", length=512, micro=2, method="full", name=f"peer-{turn}"))
    found: Figures = {}
    for name, both in runs.items():
        if any(run.exit != 0 for run in both):
            return {**found, f"{name}.said": both[0].output.strip()[-200:]}
        for figure in ("first_step_seconds", "end_seconds"):
            found[f"{name}.{figure}"] = statistics.median(getattr(run, figure) for run in both)
    ratio = found["shardwise.first_step_seconds"] / found["trainer.first_step_seconds"]
    return {**found, "first_step_of_trainer": ratio}


def choice(bench: Bench) -> Figures:
    """8B LoRA as the planner does it where nothing is stated, beside the best that is stated by hand."""
    own = figures(bench.train("choice-own", "8b", method="lora"))
    by_hand = [bench.known["lora_8b.tokens_per_second"]] if "lora_8b.tokens_per_second" in bench.known else []
    for micro in (2, 4) if not by_hand else (4,):
        keys = {**PLAIN, "train.micro_batch_size": micro}
        ran = figures(bench.train(f"choice-{micro}", "8b", method="lora", keys=keys))
        by_hand += [ran["tokens_per_second"]] if ran["exit"] == 0 else []
    if own["exit"] == 0 and by_hand:
        own["of_best_by_hand"] = own["tokens_per_second"] / max(by_hand)
    return own


def packed(bench: Bench) -> Figures:
    """0.5B on documents packed to 4,096 tokens, beside rows of 4,096."""
    keys = {"train.gradient_checkpointing": "none"}
    told: Figures = {}
    for kind in ("packed", "unpacked"):
        ran = bench.train(f"packed-{kind}", "0.5b", length=4096, packed=kind == "packed", keys=keys)
        told |= named(kind, figures(ran))
    rates = [told.get(f"{kind}.tokens_per_second") for kind in ("packed", "unpacked")]
    return told | ({"of_unpacked": rates[0] / rates[1]} if all(rates) else {})


def seeds(bench: Bench) -> Figures:
    """TinyLlama on 1,024 rows of 1,024 tokens, as the first of the two runs that this project began with."""
    ran = bench.train("seeds", "tinyllama", steps=32 if bench.is_cuda else 4, **_seed(16, 2))
    return {**figures(ran), "seconds": ran.seconds}


def codellama(bench: Bench) -> Figures:
    """CodeLlama-34B, the other: what the planner says of it on this GPU, and some steps where it fits, and disk and
    time allow the 68 GB."""
    hardware = () if bench.is_cuda else ("--hardware", "1x H100-SXM")
    words = ["--model", "codellama-34b", "--method", "lora", "--max-length", 1024, "--global-batch-size", 16]
    words += ["--set", "train.micro_batch_size=4", "--json", *hardware]
    ran = bench.shardwise("codellama-plan", "plan", *words)
    if ran.exit not in (0, 1):
        return {"answered": False, "said": ran.output.strip()[-200:]}
    plan = json.loads(ran.output)
    if ran.exit == 1:
        return {"answered": bool(plan["rejected"]), "said": plan["rejected"][0]["reason"]}
    chosen = plan["candidates"][plan["chosen"]]
    told: Figures = {"answered": True, "forecast_gib": chosen["memory"]["peak_bytes"] / GIB}
    told["forecast_step_seconds"] = chosen["time"]["step_seconds"]
    room = shutil.disk_usage(bench.folder).free > 1.2 * WEIGHTS_BYTES
    if bench.is_cuda and room and bench.over - time.monotonic() > WEIGHTS_BYTES / DISK_BYTES_PER_SECOND:
        bench.models(["codellama"])
        told |= figures(bench.train("codellama", "codellama", steps=6, **_seed(4, 4)))
    return told


def _seed(micro: int, accumulation: int) -> dict[str, Any]:
    keys = {"train.micro_batch_size": micro}
    return {"length": 1024, "method": "lora", "batch": micro * accumulation, "keys": keys}


def peers(bench: Bench) -> Figures:
    """8B LoRA by those that are installed, and ours over the best of them."""
    kinds: dict[str, tuple[str, ...]] = {"trainer": (), "loop": (), "loop_compiled": ("--compile",)}
    if find_spec("liger_kernel"):
        kinds["loop_compiled_liger"] = ("--compile", "--liger")
    if find_spec("unsloth"):
        kinds["unsloth"] = ()
    told: Figures = {}
    for name, options in kinds.items() if bench.is_cuda else list(kinds.items())[1:2]:
        try:
            ran = _peer(
                bench, name.partition("_")[0], "8b", length=2048, micro=2, method="lora", name=name, more=options
            )
        except LateError:
            told[f"{name}.left_out"] = "no time was left"
            break
        if ran.exit != 0 or len(ran.metrics) < 4:
            told[f"{name}.said"] = ran.output.strip()[-200:]
            continue
        later = ran.metrics[2:]
        tokens = 8 * bench.length(2048)
        told[f"{name}.tokens_per_second"] = tokens / statistics.median(step["seconds"] for step in later)
        told[f"{name}.peak_gib"] = max(step["peak_bytes"] for step in later) / GIB
        told[f"{name}.first_step_seconds"] = ran.first_step_seconds
    best = max((figure for name, figure in told.items() if name.endswith("tokens_per_second")), default=None)
    if best and "lora_8b.tokens_per_second" in bench.known:
        told["of_best"] = bench.known["lora_8b.tokens_per_second"] / best
    return told


def _peer(
    bench: Bench, kind: str, model: str, *, length: int, micro: int, method: str, name: str, more: tuple[str, ...] = ()
) -> Any:
    """Eight steps of eight rows by another trainer."""
    folder = bench.folder / name
    shutil.rmtree(folder, ignore_errors=True)
    sizes = {"tokens": bench.length(length), "micro": micro, "accumulation": 8 // micro, "steps": 8}
    options = [word for key, value in sizes.items() for word in (f"--{key}", value)]
    where = (bench.folder / "models" / model, bench.rows(length), folder)
    command = [sys.executable, HERE / "peer.py", kind, *where, *options, "--method", method, "--device", bench.device]
    return bench.timed([*command, *more], folder=folder)
