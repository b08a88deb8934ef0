"""Measures single ranks of layouts on one device: `make accuracy-gpu`.

    python -m accuracy.grid.alone [--minutes 9]     # one GPU, into accuracy/grid/alone.csv
    python -m accuracy.grid.alone --device cpu --out FILE    # toy models: tests this script

A rank trains two steps by the trainer's own code, with real tensors, in a process group of the layout's size in which
it is alone. Collectives of such a group bring nothing, so that numbers mean nothing; what is allocated is as on that
many GPUs. Each rank is a process of its own, and of ranks that are alike one is measured.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

from accuracy.grid.cells import LARGE, LAYOUTS, Cell, Measured, job_of, planned
from accuracy.grid.elsewhere import ALONE, FOLDER
from shardwise.catalog.config import shape_from_data
from shardwise.catalog.probe import this_machine
from shardwise.errors import ShardwiseError, said
from shardwise.plan.work.margins import workspace_bytes
from shardwise.spec.data_facts import Lengths
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.forecast import Candidate
from shardwise.spec.run import RunDirectory
from shardwise.train.build import build
from shardwise.train.loop import launch
from shardwise.train.measuring.memory import held
from shardwise.train.rehearsing.command import at_once, rehearse_ranks
from shardwise.train.rehearsing.rank import alone, two_steps, write_model, write_rows
from shardwise.train.watching.journal import Journal

#: What a rank that is alone cannot show.
LEFT_OUT = {
    "experts": "which expert a token goes to is read from what other ranks send",
    "cp": "it is not rehearsed, and what it sends depends on the mask",
}
#: (method, recompute) of cells of a GPU, in turn.
_KINDS = (("full", "none"), ("lora", "none"), ("full", "full"), ("lora", "full"), ("qlora", "full"))
_FAILURES = (ShardwiseError, RuntimeError, ValueError, TypeError, AttributeError, AssertionError, ImportError)
#: Cells of the CPU: layout and method.
_SMALL = (
    ("single", "full"),
    ("fsdp 4", "full"),
    ("fsdp", "lora"),
    ("tp", "full"),
    ("1f1b", "full"),
)


def cells(device: str) -> list[Cell]:
    """What is measured on `cuda` or `cpu`."""
    if device == "cpu":
        toy: dict[str, Any] = {"family": "llama", "batch": 2, "length": 128, "recompute": "none", "precision": "fp32"}
        return [Cell(layout=layout, method=method, rows="whole", **toy) for layout, method in _SMALL]
    kinds, sizes = cycle(_KINDS), {"batch": 2, "length": 2048, "precision": "mixed", "rows": "whole"}
    layouts = [layout for layout in LAYOUTS if layout not in LEFT_OUT]
    pairs = [(layout, family) for layout in layouts for family in LARGE]
    drawn = zip(pairs, kinds, strict=False)
    return [Cell(layout=x, family=y, method=m, recompute=r, **sizes) for (x, y), (m, r) in drawn]


def measured(job: Job, execution: Execution, device: str, rank: int) -> dict[str, Any]:
    """Bytes of weights, of optimizer states and of the peak of one rank's two steps, or why there are none."""
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(0)
        torch.cuda.init()
    try:
        job, execution = two_steps(job, execution)
        with tempfile.TemporaryDirectory() as root:
            run = RunDirectory(Path(root))
            write_rows(run, job, count=job.train.global_batch_size)
            with alone(execution.layout, rank=rank, device=torch.device(device)) as world:
                built = build(run, job, execution, world=world, journal=Journal(run=run, rank=rank))
                built.metrics.meter.begin()
                for batch in built.batches.from_(0):
                    with built.metrics.meter.watch([job.data.max_length] * len(batch.micro_batches)):
                        launch(built, batch)
                now = held((p for _, p in built.model.parameters), built.optimizer)
                return {"weights": now.weights, "optimizer": now.optimizer, "peak": built.metrics.meter.peak_bytes}
    except _FAILURES as error:
        return {"refused": [f"{type(error).__name__}: {said(error)}"]}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A rank that was measured, and the forecast of its peak on the day."""

    cell: Cell
    measured: Measured
    forecast: int
    device: str

    def to_csv(self, number: int) -> dict[str, Any]:
        """As cells.csv has them, with two columns more."""
        cell, rank = asdict(self.cell), asdict(self.measured)
        return {"cell": number, "device": self.device, **cell, **rank, "forecast": self.forecast}

    @property
    def words(self) -> str:
        """A line for the terminal."""
        seen, rehearsed = self.measured, self.measured.rehearsed
        far = "not rehearsed" if rehearsed is None else f"rehearsed {rehearsed / seen.peak - 1:+.2%}"
        ratios = f"forecast {self.forecast / seen.peak - 1:+.2%}, {far}"
        return f"{self.cell.words}, rank {seen.rank}: {seen.peak / 2**20:,.1f} MiB, {ratios}"


def rows_of(cell: Cell, *, device: str, folder: Path) -> list[Row]:
    """Each kind of rank of a cell. Raises ShardwiseError: it is not planned or not trained."""
    gpu = None if device == "cpu" else this_machine().gpu.name
    model = folder / cell.family.replace(" ", "-")
    if not model.exists():
        write_model(model, cell.config, dtype=torch.float32)
    job = job_of(cell, model=str(model), data="rows.jsonl")
    lengths = Lengths(longest=cell.length, mean=cell.length, document=None)
    chosen = planned(cell, job, shape=shape_from_data(cell.config, file="config.json"), lengths=lengths, gpu=gpu)
    return _rows(cell, job, chosen, lengths=lengths, device=device, gpu=gpu)


def _rows(cell: Cell, job: Job, chosen: Candidate, *, lengths: Lengths, device: str, gpu: str | None) -> list[Row]:
    execution, groups = chosen.execution, chosen.memory.ranks
    ranks = [group.ranks[0] for group in groups]
    found = [at_once([rank], partial(measured, job, execution, device))[0] for rank in ranks]
    rehearsed = rehearse_ranks(job, execution, ranks, cuda=gpu is not None, copies=False)
    for answer in (*found, *rehearsed):
        if "refused" in answer:
            raise ShardwiseError("; ".join(answer["refused"]))
    seen = {"longest": lengths.longest, "mean": lengths.mean, "document": lengths.document, "unseen": 0}
    beside = workspace_bytes(cell.hardware(gpu).gpu)
    return [
        Row(
            cell=cell,
            measured=Measured(
                **seen,
                **taken,
                rank=group.ranks[0],
                rehearsed=answer["peak_bytes"] + beside,
                reduce_once=int(execution.reduce_once),
            ),
            forecast=int(group.peak_bytes - group.parts.get("context", 0)),
            device=gpu or "cpu",
        )
        for group, taken, answer in zip(groups, found, rehearsed, strict=True)
    ]


def main() -> None:
    """Measures cells until the time is over, and writes them."""
    parser = argparse.ArgumentParser(prog="python -m accuracy.grid.alone", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--out", type=Path, help="accuracy/grid/alone.csv for a GPU")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and this_machine().gpu.kind == "cpu":
        sys.exit("nvidia-smi shows no GPU; --device cpu tests this script")
    out = arguments.out or (FOLDER / ALONE if arguments.device == "cuda" else Path(tempfile.gettempdir()) / ALONE)
    chosen = [cell for cell in cells(arguments.device) if cell.layout in arguments.layouts]
    measure(chosen, device=arguments.device, out=out, over=time.monotonic() + 60 * arguments.minutes)


def measure(chosen: Sequence[Cell], *, device: str, out: Path, over: float) -> None:
    """Writes each cell as soon as it is measured, and says which are left out and why."""
    names = [field.name for kind in (Cell, Measured) for field in fields(kind)]
    for what, why in LEFT_OUT.items():
        sys.stdout.write(f"left out: {what}: {why}\n")
    with tempfile.TemporaryDirectory() as folder, out.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["cell", "device", *names, "forecast"], lineterminator="\n")
        writer.writeheader()
        for number, cell in enumerate(chosen):
            try:
                rows = _in_time(cell, device=device, folder=Path(folder), over=over)
            except ShardwiseError as refused:
                sys.stdout.write(f"left out: {cell.words}: {refused}\n")
                continue
            writer.writerows(row.to_csv(number) for row in rows)
            file.flush()
            sys.stdout.writelines(f"{row.words}\n" for row in rows)
            sys.stdout.flush()
    sys.stdout.write(f"written to {out}\n")


def _in_time(cell: Cell, *, device: str, folder: Path, over: float) -> list[Row]:
    if time.monotonic() > over:
        raise ShardwiseError("no time was left")
    return rows_of(cell, device=device, folder=folder)


if __name__ == "__main__":
    main()
