"""How long a run is, in steps, seconds and money, or what to say for that to be known."""

from typing import Literal

from shardwise.plan.time import num_steps
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
    sentence = "its rows are not known yet" if job.data.path else "say data.num_rows for time and cost"
    if steps is not None:
        rows = "" if num_rows is None else f" of {num_rows:,} rows ({_SAID[rows_from or 'stated']})"
        took = "" if seconds is None else f": {format_seconds(seconds)}"
        cost = "" if best is None or usd is None else f", {cost_text(best.cost)}"
        sentence = f"{steps:,} step{'s' if steps > 1 else ''}{rows}{took}{cost}"
    source = rows_from if num_rows is not None else None if steps is None else "max_steps"
    return RunForecast(
        rows_from=source, num_rows=num_rows, num_steps=steps, seconds=seconds, usd=usd, sentence=sentence
    )
