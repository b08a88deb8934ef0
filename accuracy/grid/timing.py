"""Probes this machine, times the steps of each job under each layout, and compares them with their forecasts.

    python -m accuracy.grid.timing --out FOLDER [--rounds N] [--jobs N ...]    # about 12 minutes on two cores
    python -m accuracy.grid.timing --out FOLDER --rounds 0                     # with the forecasts of today

Jobs are trained as `shardwise compare` trains them. Nothing else may be at work meanwhile: each message waits for the
rank that is late. FOLDER gets rates.json and times.csv; those in accuracy/grid are a section of docs/accuracy.md, which
`make accuracy` writes.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from accuracy.grid.measure import model_folder
from accuracy.grid.timed import JOBS, LAYOUTS, MODELS, TimedJob, summary, timed
from shardwise import api
from shardwise.report.run_files import WARM_UP_STEPS
from shardwise.spec.run import RunDirectory, read_metrics, write_json

#: Of a run; the first three warm up.
_STEPS = 13
_WORDS = 2000


def _timed(one: TimedJob, root: Path) -> dict[str, list[float]]:
    """Seconds of the steps behind the first three by layout."""
    data = root / "rows.jsonl"
    row = " ".join(f"w{(7 * at) % _WORDS}" for at in range(one.length))
    data.write_text((json.dumps({"text": row}) + "\n") * 200)
    job = one.job(model=str(model_folder(root, json.dumps(MODELS[one.model]))), data=str(data))
    folder = json.dumps(tempfile.mkdtemp(dir=root))
    made = api.compare(job, layouts=LAYOUTS, overrides=[f"output_dir={folder}"], steps=_STEPS)
    for failed in made.failed:
        sys.stderr.write(f"{failed.layout} failed: {failed.reason}\n")
    return {c.layout: _steady(RunDirectory(Path(c.run))) for c in made.contenders}


def _steady(run: RunDirectory) -> list[float]:
    return [record["step_seconds"] for record in read_metrics(run)[WARM_UP_STEPS:]]


def main() -> None:
    """Probes, measures and compares."""
    parser = argparse.ArgumentParser(prog="python -m accuracy.grid.timing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--jobs", type=int, nargs="*", default=range(len(JOBS)))
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    times, rates = arguments.out / "times.csv", arguments.out / "rates.json"
    if arguments.rounds:
        arguments.out.mkdir(parents=True, exist_ok=True)
        _measure([JOBS[index] for index in arguments.jobs], rounds=arguments.rounds, times=times, rates=rates)
    sys.stdout.write(summary(timed(times, rates)) + "\n")


def _measure(jobs: list[TimedJob], *, rounds: int, times: Path, rates: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, times.open("w", newline="") as file:
        root = Path(folder)
        os.environ["SHARDWISE_CACHE"] = str(root / "cache")
        write_json(rates, api.probe()[0].to_json())
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["job", "layout", "round", "step_seconds", "fastest_step"])
        for number in range(1, rounds + 1):
            for one in jobs:
                for layout, seconds in _timed(one, root).items():
                    writer.writerow([one.words, layout, number, f"{median(seconds):.5f}", f"{min(seconds):.5f}"])
                file.flush()
                sys.stderr.write(f"round {number}: {one.words}\n")


if __name__ == "__main__":
    main()
