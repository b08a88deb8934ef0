"""The jobs whose steps are timed under each layout, and their forecasts with the rates that were probed before."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from accuracy.grid.cells import COMMON
from shardwise.catalog.config import shape_from_data
from shardwise.catalog.devices import cpu_cluster
from shardwise.catalog.rates import Rates, rated
from shardwise.launch.trials import layout_of
from shardwise.plan.answer import make_plan
from shardwise.spec.data_facts import Lengths
from shardwise.spec.job.file import job_from_data
from shardwise.spec.job.keys import Job
from shardwise.spec.job.strict import from_plain
from shardwise.spec.run import read_json

#: One process, and each way to spread a model over two.
LAYOUTS = ("single-1", "ddp-2", "zero1-2", "zero2-2", "fsdp-2", "tp-2", "pp-2", "mp-2")
#: Rows of a step, in micro-batches of one.
GLOBAL_BATCH, MICRO_BATCH = 4, 1


def _config(family: str, vocab: int, width: int, inner: int, layers: int, heads: int, **others: Any) -> dict[str, Any]:
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    sizes = dict(zip(names, (vocab, width, inner, layers, heads), strict=True))
    return {**COMMON, "model_type": family, **sizes, "num_key_value_heads": heads // 2, **others}


#: Of 4, 17, 10 and 25 million parameters.
MODELS = {
    "llama small": _config("llama", 2048, 256, 512, 4, 8),
    "llama": _config("llama", 4096, 384, 1024, 8, 8),
    "gpt_neox": _config("gpt_neox", 4096, 384, 1536, 4, 8),
    "qwen3": _config("qwen3", 12288, 512, 1536, 4, 8, head_dim=64),
}


@dataclass(frozen=True, kw_only=True)
class TimedJob:
    """What is trained, on rows that are all `length` tokens long."""

    model: str
    method: str
    length: int = 128
    precision: str = "fp32"
    recompute: str = "none"

    @property
    def words(self) -> str:
        """For people, and what the table of times names it by."""
        parts = (self.model, self.method, f"{self.length} tokens", self.precision, f"recompute {self.recompute}")
        return ", ".join(parts)

    def job(self, *, model: str, data: str, **others: Any) -> Job:
        """On a model's folder and a file of rows."""
        keys = {"gradient_checkpointing": self.recompute, "precision": self.precision, "attn_implementation": "sdpa"}
        train = {"global_batch_size": GLOBAL_BATCH, "micro_batch_size": MICRO_BATCH, "save_steps": 0, **keys}
        rows = {"path": data, "max_length": self.length, "over_long": "truncate"}
        return job_from_data({"model": model, "method": self.method, "data": rows, "train": train, **others})


JOBS = (
    TimedJob(model="llama", method="full"),
    TimedJob(model="llama", method="lora"),
    TimedJob(model="qwen3", method="full", precision="mixed"),
    TimedJob(model="qwen3", method="lora", length=256),
    TimedJob(model="gpt_neox", method="full", recompute="full"),
    TimedJob(model="llama small", method="full", length=256),
    TimedJob(model="gpt_neox", method="lora", precision="mixed"),
    TimedJob(model="qwen3", method="full", length=256),
)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Seconds of a job's step under a layout: the median and the fastest that were measured, over rounds; and the
    forecast of today with the rates that were probed."""

    job: str
    layout: str
    measured: float
    fastest: float
    forecast: float

    @property
    def error(self) -> float:
        """Relative to the median."""
        return self.forecast / self.measured - 1

    @property
    def words(self) -> str:
        """A line of a table."""
        seconds = f"{self.measured:7.3f} s, fastest {self.fastest:7.3f} s, forecast {self.forecast:7.3f} s"
        return f"{self.job:52} {self.layout:9} {seconds} {self.error:+7.1%}"


def timed(times: Path, rates: Path) -> list[Timed]:
    """Every measured cell."""
    probed, jobs = from_plain(Rates, read_json(rates)), {job.words: job for job in JOBS}
    with times.open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: (row["job"], row["layout"]))
    cells: list[Timed] = []
    for (job, layout), alike in groupby(rows, key=lambda row: (row["job"], row["layout"])):
        rounds = [(float(row["step_seconds"]), float(row["fastest_step"])) for row in alike]
        measured, fastest = median(step for step, _ in rounds), min(fast for _, fast in rounds)
        seconds = forecast(jobs[job], layout, probed)
        cells.append(Timed(job=job, layout=layout, measured=measured, fastest=fastest, forecast=seconds))
    return cells


def forecast(one: TimedJob, layout: str, rates: Rates) -> float:
    """Seconds of a step, planned as `shardwise compare` plans it."""
    name, _, size = layout.partition("-")
    job = one.job(model="model", data="rows.jsonl", layout=layout_of(name, int(size)).to_json())
    cluster = rated(cpu_cluster(num_processes=int(size)), rates)
    shape = shape_from_data(MODELS[one.model], file="config.json")
    lengths = Lengths(longest=one.length, mean=one.length, document=None)
    best = make_plan(job, model=shape, cluster=cluster, lengths=lengths).best
    return inf if best is None else best.time.step_seconds


def regret(cells: Sequence[Timed]) -> float:
    """How much longer a job's step takes under the layout that is forecast to be the fastest than under the fastest."""
    chosen = min(cells, key=lambda cell: cell.forecast)
    return chosen.measured / min(cell.measured for cell in cells) - 1


def promised(cells: Sequence[Timed]) -> dict[str, float]:
    """The median `error` of steps; in how many of the `jobs` the choice is `near`, within 5 % of the fastest; and the
    `worst` regret."""
    lost = [regret(list(alike)) for _, alike in groupby(cells, key=lambda cell: cell.job)]
    error = median(abs(cell.error) for cell in cells)
    return {"error": error, "near": sum(one <= 0.05 for one in lost), "jobs": len(lost), "worst": max(lost)}


def summary(cells: Sequence[Timed]) -> str:
    """The table, and what is promised of it: errors, and regrets by job."""
    found = promised(cells)
    lines = [cell.words for cell in cells]
    for layout in LAYOUTS:
        off = [cell.error for cell in cells if cell.layout == layout]
        lines += [f"{layout}: median error {median(off):+.1%}"] if off else []
    lines += [
        f"median error of {len(cells)} steps: {found['error']:.1%}",
        f"the layout forecast to be the fastest is within 5 % of it in {found['near']} of "
        f"{found['jobs']} jobs; at worst {found['worst']:.1%} slower",
    ]
    return "\n".join(lines)
