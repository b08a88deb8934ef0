"""How long a run is, in steps, seconds and money, or what to say for that to be known."""

from typing import Literal

from shardwise.plan.time.step import num_steps
from shardwise.spec.job.keys import Job
from shardwise.spec.plan.changes import RunForecast
from shardwise.spec.plan.forecast import Candidate, cost_text
from shardwise.units import format_seconds

_SAID = {"stated": "as data.num_rows says", "counted": "counted", "sampled": "counted, with the lengths of a sample"}


def run_of(
    job: Job, best: Candidate | None, *, num_rows: int | None, rows_from: Literal["stated", "counted", "sampled"] | None
) -> RunForecast:
    """The run of a job's chosen candidate. `rows_from`: where the number of rows comes from."""
    steps = num_steps(job.train, num_rows=num_rows)
    seconds = None if best is None else best.time.total_seconds
    usd = None if best is None else best.cost.usd
    source = rows_from if num_rows is not None else None if steps is None else "max_steps"
    return RunForecast(
        rows_from=source,
        num_rows=num_rows,
        num_steps=steps,
        seconds=seconds,
        usd=usd,
        sentence=_sentence(job, best, steps=steps, num_rows=num_rows, rows_from=rows_from),
    )


def _sentence(
    job: Job, best: Candidate | None, *, steps: int | None, num_rows: int | None, rows_from: str | None
) -> str:
    if steps is None:
        return "say data.num_rows for time and cost" if not job.data.path else "its rows are not known yet"
    rows = "" if num_rows is None else f" of {num_rows:,} rows ({_SAID[rows_from or 'stated']})"
    took = "" if best is None or best.time.total_seconds is None else f": {format_seconds(best.time.total_seconds)}"
    cost = "" if best is None or best.cost.usd is None else f", {cost_text(best.cost)}"
    return f"{steps:,} step{'s' if steps > 1 else ''}{rows}{took}{cost}"
