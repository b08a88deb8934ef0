"""Runs cells of the grid in real processes and writes what each rank measured beside its forecast.

    python -m accuracy.grid.measure [--count N] [--out accuracy/grid/cells.csv]    # about 25 minutes on two cores
    python -m accuracy.grid.measure --reduced-once    # then those in which FSDP reduces gradients once a step
    python -m accuracy.grid.measure --pipelines       # then those of interleaved and zero_bubble
    python -m accuracy.grid.measure --held-out        # then those of a held-out family
    python -m accuracy.grid.measure --again 46 140    # only these, in the file of an earlier run
    python -m accuracy.grid.measure --compiled    # cells with compiled blocks, into compiled.csv, in about 30 minutes
    python -m accuracy.grid.measure --preferences    # of preferences, into preferences.csv, in about 10 minutes

Each of the first four makes its own cells and leaves the file's others.

Each cell is planned as `shardwise train` plans it, on prepared data, and trained for some optimizer steps with
accumulation. Measured are the bytes that a rank holds between steps and the most that was allocated at one instant.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch._dynamo.utils import counters
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from accuracy.grid.cells import (
    COUNT,
    COUNT_COMPILED,
    COUNT_HELD_OUT,
    COUNT_ONCE,
    COUNT_PIPELINES,
    COUNT_PREFERENCES,
    EXACT,
    FAMILIES,
    HELD_OUT,
    PIPELINES,
    Cell,
    Measured,
    drawn,
    drawn_compiled,
    drawn_pipelines,
    drawn_preferences,
    job_of,
    planned,
)
from accuracy.grid.compare import CELLS, COMPILED, PREFERENCES, read_cells
from accuracy.grid.rows import STEPS, words_of_row
from shardwise.catalog.models import read_model
from shardwise.errors import ShardwiseError
from shardwise.launch.run_folder import known_data
from shardwise.parallel.single_stage import WholeModel
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import RunDirectory
from shardwise.train.build import Build
from shardwise.train.measuring.memory import Allocations, Held, held, highest_by_phase
from tests.dist.cells import composed, prepare_cell
from tests.dist.worlds import run_world

Kind = Literal["drawn", "reduced once", "pipelines", "held out", "led to a rule", "compiled", "preferences"]
Ranks = tuple[Cell, list[Measured]]
_COUNTS: dict[Kind, int] = {
    "drawn": COUNT,
    "reduced once": COUNT_ONCE,
    "pipelines": COUNT_PIPELINES,
    "held out": COUNT_HELD_OUT,
    "compiled": COUNT_COMPILED,
    "preferences": COUNT_PREFERENCES,
}
_WORDS = 2000


@cache
def model_folder(root: Path, config: str) -> Path:
    """A random model of a config.json, with a tokenizer of 2,000 words, below `root`."""
    folder = root / f"model-{abs(hash(config))}"
    torch.manual_seed(0)
    stated = json.loads(config)
    made = AutoConfig.for_model(stated.pop("model_type"), **stated)
    AutoModelForCausalLM.from_config(made, dtype=torch.float32).save_pretrained(folder)
    words = {word: at for at, word in enumerate(["<pad>", "<bos>", "<eos>", *(f"w{at}" for at in range(_WORDS))])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<eos>"))  # noqa: S106
    tokenizer.pre_tokenizer = WhitespaceSplit()
    special = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    return folder


def _rows(cell: Cell, count: int) -> Iterator[dict[str, Any]]:
    """Of preferences the first word is the prompt."""
    for index in range(count):
        text = " ".join(f"w{(7 * index + at) % _WORDS}" for at in range(words_of_row(cell, index)))
        prompt, answer = text.split(" ", 1)
        if cell.objective == "sft":
            yield {"text": text}
        elif cell.objective == "kto":
            yield {"prompt": prompt, "completion": f" {answer}", "label": index % 2 > 0}
        else:
            other = " ".join(reversed(answer.split()))
            yield {"prompt": prompt, "chosen": f" {answer}", "rejected": f" {other}"}


def written_job(cell: Cell, root: Path) -> Job:
    """The job of a cell, its model and rows written below `root`."""
    data = root / "rows.jsonl"
    folder = model_folder(root.parent, json.dumps(cell.config))
    job = job_of(cell, model=str(folder), data=str(data))
    count = STEPS * job.train.global_batch_size * (3 if cell.rows == "packed" else 1)
    with data.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in _rows(cell, count))
    return job


def _peaks(run: RunDirectory, chosen: Execution) -> dict[str, int]:
    """Bytes of weights and of optimizer states; the peak of a step that has these, and what of it is not certain.

    A tensor that gloo's own thread is the last to let go of is not seen to be freed. Of the steps, those count in which
    all was seen, or the one in which most was; not the first, nor one in which anything was compiled.
    """
    built = composed(run, chosen)
    steps: list[tuple[int, int, int]] = []
    for index, batch in enumerate(built.batches.from_(0)):
        before, graphs = _held(built), counters["stats"]["unique_graphs"]
        profiler = Allocations(profile_memory=True)
        with profiler:
            built.step(batch)
            built.optimizer.step()
            built.optimizer.zero_grad()
        unseen = _grown(profiler) - (_held(built).total - before.total)
        spread = built.model.spread
        buckets = sum(view.nbytes for _, view in spread.begin.places) if isinstance(spread, WholeModel) else 0
        if index and counters["stats"]["unique_graphs"] == graphs:
            steps.append((unseen, before.total + buckets + max(highest_by_phase(profiler).values()), index))
    peak, unseen, step = max((p, u, at) for u, p, at in steps if u <= max(min(steps)[0], EXACT * p))
    now = _held(built)
    return {"weights": now.weights, "optimizer": now.optimizer, "peak": peak, "unseen": unseen, "step": step}


def _held(built: Build) -> Held:
    return held((p for _, p in built.model.parameters), built.optimizer)


def _grown(profiler: Allocations) -> int:
    """What was allocated and is not freed."""
    events: Any = profiler.kineto_results
    return sum(event.nbytes() for event in events.events() if event.name() == "[memory]")


def measured(cell: Cell, root: Path, *, before: Measured | None = None) -> list[Measured]:
    """What its ranks measured; `before`: in the plan that was run then. Raises ShardwiseError: the planner or the
    trainer refuses it."""
    job = written_job(cell, root)
    run = prepare_cell(job, root / "run")
    _, lengths = known_data(run)
    if lengths is None:
        raise ShardwiseError("no data was prepared")
    execution = planned(cell, job, shape=read_model(job.model), lengths=lengths).execution
    if before is not None:
        execution = replace(execution, reduce_once=bool(before.reduce_once))
    found = _run(cell, run, execution)
    seen = {"longest": lengths.longest, "mean": lengths.mean, "document": lengths.document}
    seen["reduce_once"] = int(execution.reduce_once)
    return [Measured(**seen, rank=rank, **taken) for rank, taken in enumerate(found)]


def _run(cell: Cell, run: RunDirectory, execution: Execution) -> list[dict[str, int]]:
    """`_peaks` of every rank. Raises ShardwiseError: torch writes code for a processor that is no C++."""
    try:
        return run_world(cell.processes, _peaks, run, execution)
    except AssertionError as failed:
        if "CppCompileError" not in str(failed):
            raise
        raise ShardwiseError("the C++ that torch's inductor wrote for it does not compile") from failed


def _again(numbers: list[int], out: Path) -> None:
    """Measures cells of a file once more. What was rehearsed stays."""
    made = list(read_cells(out))
    for number in numbers:
        cell, ranks = made[number]
        with tempfile.TemporaryDirectory() as root:
            folder = Path(root) / str(number)
            folder.mkdir()
            found = measured(cell, folder, before=ranks[0])
        made[number] = cell, [replace(new, rehearsed=old.rehearsed) for new, old in zip(found, ranks, strict=True)]
        sys.stdout.write(f"{number}: {cell.words}\n")
        sys.stdout.flush()
        write_cells(out, made)


def write_cells(out: Path, made: Iterable[tuple[Cell, list[Measured]]]) -> None:
    """All cells with their ranks, numbered in order."""
    with out.open("w", newline="") as file:
        names = ["cell", *(field.name for kind in (Cell, Measured) for field in fields(kind))]
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        for number, (cell, ranks) in enumerate(made):
            writer.writerows({"cell": number, **asdict(cell), **asdict(rank)} for rank in ranks)


def cpp_compiler() -> str | None:
    """What torch's compiler calls for processors: what CXX names, or g++."""
    return shutil.which(os.environ.get("CXX", "g++"))


def kind_of(cell: Cell, ranks: Sequence[Measured]) -> Kind:
    """Which of the commands above made it; those of a family that led to a rule are made no more."""
    if cell.compile:
        return "compiled"
    if cell.objective != "sft":
        return "preferences"
    if cell.apart:
        return "held out" if cell.held_out else "led to a rule"
    if cell.layout in PIPELINES:
        return "pipelines"
    return "reduced once" if ranks[0].reduce_once else "drawn"


def made_and_others(file: Path, kind: Kind) -> tuple[list[Ranks], list[Ranks]]:
    """Cells of a file to which those of a kind are added, and all others; drawn ones are made anew."""
    every = list(read_cells(file)) if file.is_file() else []
    made = [one for one in every if kind_of(*one) == kind != "drawn"]
    return made, [one for one in every if kind_of(*one) != kind]


def _one(cell: Cell, folder: Path, kind: Kind) -> list[Measured]:
    """What a cell's ranks measured, where it is of the kind. Raises ShardwiseError: it is not, or as `measured`."""
    found = measured(cell, folder)
    if kind == "reduced once" != kind_of(cell, found):
        raise ShardwiseError("its plan reduces gradients in each micro-batch")
    return found


def _drawn_of(kind: Kind) -> Iterator[Cell]:
    if kind == "compiled":
        return drawn_compiled()
    if kind == "preferences":
        return drawn_preferences()
    if kind == "pipelines":
        return drawn_pipelines()
    return drawn(HELD_OUT if kind == "held out" else FAMILIES)


def _make(kind: Kind, count: int, out: Path) -> None:
    """Measures cells of a kind until the file has so many."""
    made, others = made_and_others(out, kind)
    known = {cell for cell, _ in (*made, *others)} if kind != "drawn" else set[Cell]()
    places: dict[Cell, int] = {}
    root = Path(tempfile.mkdtemp())
    for cell in _drawn_of(kind):
        if len(made) >= count:
            break
        places[cell] = len(places)
        if cell in known:
            continue
        folder = root / "cell"
        folder.mkdir()
        try:
            made.append((cell, _one(cell, folder, kind)))
        except ShardwiseError as refused:
            sys.stderr.write(f"left out: {cell}: {refused}\n")
        else:
            made.sort(key=lambda one: places.get(one[0], len(places)))
            mine = {cell for cell, _ in made}
            write_cells(out, [*(one for one in others if one[0] not in mine), *made])
            sys.stdout.write(f"{len(made)} of {count}: {cell}\n")
            sys.stdout.flush()
        shutil.rmtree(folder)
    shutil.rmtree(root)


def main() -> None:
    """Measures cells until there are enough, and writes them."""
    parser = argparse.ArgumentParser(prog="python -m accuracy.grid.measure", description=__doc__)
    parser.add_argument("--count", type=int, help="cells of the kind in the file when it is done")
    parser.add_argument("--out", type=Path, help="cells.csv, compiled.csv or preferences.csv, beside this file")
    parser.add_argument("--again", type=int, nargs="+", default=[], metavar="CELL")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--reduced-once", action="store_const", dest="kind", const="reduced once")
    kinds.add_argument("--pipelines", action="store_const", dest="kind", const="pipelines")
    kinds.add_argument("--held-out", action="store_const", dest="kind", const="held out")
    kinds.add_argument("--compiled", action="store_const", dest="kind", const="compiled")
    kinds.add_argument("--preferences", action="store_const", dest="kind", const="preferences")
    arguments = parser.parse_args()
    kind: Kind = arguments.kind or "drawn"
    out = arguments.out or {"compiled": COMPILED, "preferences": PREFERENCES}.get(kind, CELLS)
    if kind == "compiled" and cpp_compiler() is None:
        sys.stderr.write("compiled cells are left out: there is no C++ compiler; install g++, or name one by CXX\n")
    elif arguments.again:
        _again(arguments.again, out)
    else:
        _make(kind, arguments.count or _COUNTS[kind], out)


if __name__ == "__main__":
    main()
