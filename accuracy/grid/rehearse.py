"""Rehearses the measured cells, and writes the peaks beside what was measured.

python -m accuracy.grid.rehearse [--cells accuracy/grid/cells.csv]    # about half an hour on two cores
python -m accuracy.grid.rehearse --missing    # only those that are not rehearsed
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from accuracy.grid.cells import Cell, Measured, work_of_run
from accuracy.grid.compare import CELLS, read_cells
from accuracy.grid.measure import write_cells, written_job
from shardwise.catalog.models import read_model
from shardwise.plan.memory.forecast import forecast_memory
from shardwise.spec.support.trained import rehearsal_refusals
from shardwise.train.rehearsing.command import rehearse_ranks
from tests.dist.cells import prepare_cell


def rehearsed(cell: Cell, ranks: list[Measured], root: Path) -> list[Measured]:
    """The same with the peak of each kind of rank, on the rows that it trained on."""
    job = written_job(cell, root)
    shape = read_model(job.model)
    work = work_of_run(cell, ranks[0], job, shape=shape)
    if work.execution.compile or rehearsal_refusals(work.execution, shape):
        return ranks
    run = prepare_cell(job, root / "run")
    kinds = [group.ranks for group in forecast_memory(work).ranks]
    if cell.rows == "padded":  # ranks that hold alike have other rows
        kinds = [(one.rank,) for one in ranks]
    answers = rehearse_ranks(job, work.execution, [alike[0] for alike in kinds], cuda=False, prepared=run)
    by_rank = {rank: answer for alike, answer in zip(kinds, answers, strict=True) for rank in alike}
    for answer in answers:
        if "refused" in answer:
            sys.stderr.write(f"{cell.words}: {'; '.join(answer['refused'])}\n")
    return [replace(one, rehearsed=_peak(by_rank[one.rank], one.step)) for one in ranks]


def _peak(answer: dict[str, Any], step: int | None) -> int | None:
    """Of the step that was measured, or of all where that is not known; None where a rehearsal is refused."""
    if "refused" in answer:
        return None
    return answer["peak_bytes"] if step is None else answer["step_peaks"][step]


def main() -> None:
    """Reads the cells, and writes them anew."""
    parser = argparse.ArgumentParser(prog="python -m accuracy.grid.rehearse", description=__doc__)
    parser.add_argument("--cells", type=Path, default=CELLS)
    parser.add_argument("--missing", action="store_true")
    arguments = parser.parse_args()
    cells, made = arguments.cells, list(read_cells(arguments.cells))
    with tempfile.TemporaryDirectory() as root:
        for index, (cell, ranks) in enumerate(made):
            if arguments.missing and all(one.rehearsed is not None for one in ranks):
                continue
            folder = Path(root) / str(index)
            folder.mkdir()
            made[index] = cell, rehearsed(cell, ranks, folder)
            write_cells(cells, made)
            sys.stdout.write(f"{index + 1} of {len(made)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
