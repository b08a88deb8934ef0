"""Plans, runs and comparisons as parts of a page; nothing here writes into a run."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.api.plans.planning import timeline
from shardwise.catalog.config import parse_config, shape_from_data
from shardwise.errors import InputError, JobError
from shardwise.launch.lock import is_held
from shardwise.report.collect import collect
from shardwise.report.contents import Report
from shardwise.report.pages.charts import curve_data, timeline_chart
from shardwise.report.pages.plan_page import plan_context, versus_context
from shardwise.report.pages.render import render_part, safe_json, static_text
from shardwise.report.pages.run_page import curves_of, report_context
from shardwise.report.run_files import SIGNS
from shardwise.report.versus import Versus, contender, ranked
from shardwise.spec.job.file import read_job
from shardwise.spec.job.keys import differences
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.plan.forecast import Plan
from shardwise.spec.plan.timeline import Timeline
from shardwise.spec.run import RunDirectory

#: How lines of several runs look in one chart; so many are put side by side.
LOOKS = ("main", "second", "third", "fourth")
#: States of a run that has not ended, as far as is known.
GOES_ON = ("running", "unfinished")


def read_config(raw: bytes) -> ModelShape:
    """The model of a config.json. Raises ModelError: it is of no known family."""
    return shape_from_data(parse_config(raw, file="config.json"), file="config.json")


def plan_as_part(made: Plan, *, model: str | None = None, titled: bool = False) -> str:
    """A plan as HTML; `model`: its name on the page, `titled`: with the verdict."""
    shown = made if model is None else replace(made, job={**made.job, "model": model})
    drawn = None
    with suppress(InputError):  # of a plan that another program wrote, no step is drawn
        drawn = timeline(made)
    return render_part("plan_body.html", titled=titled, **plan_context(shown, drawn))


def plan_as_file(made: Plan, *, model: str) -> dict[str, Any]:
    """plan.json of a plan, with another name for the model and without what only pages show."""
    return replace(made, job={**made.job, "model": model}, what_if=()).to_json()


def step_chart(drawn: Timeline, *, share: float) -> str:
    """A step as HTML, with a line at a share of it."""
    chart = timeline_chart(drawn)
    return render_part("chart_part.html", heading=chart.title, drawn=replace(chart, mark=100 * share))


def is_run(folder: Path) -> bool:
    """Whether a folder is a run directory."""
    return any((folder / sign).is_file() for sign in SIGNS)


def read_report(run_dir: Path) -> Report:
    """As `report`, without writing; what a run that goes on has not written yet is no gap."""
    found = collect(RunDirectory(run_dir))
    outcome = found.outcome
    # A run that was stopped and goes on has its last start's outcome until it has taken a step.
    if outcome.state != "finished" and outcome.failure is None and is_running(run_dir):
        outcome = replace(outcome, state="running")
    return replace(found, outcome=outcome, gaps=() if outcome.state in GOES_ON else found.gaps)


def is_running(run_dir: Path) -> bool:
    """Whether a process of this machine trains in a run directory."""
    return is_held(RunDirectory(run_dir))


def report_as_part(found: Report) -> tuple[str, str]:
    """A report as HTML, and the data of its curves as JSON."""
    return render_part("report_body.html", **report_context(found)), safe_json(curves_of(found))


def runs_as_part(runs: Sequence[tuple[str, Path]]) -> tuple[str, str, bool]:
    """Runs side by side, curves of losses, whether one goes on. Raises InputError."""
    reports = [(name, path, read_report(path)) for name, path in runs]
    contenders = [
        contender(name, processes=len(one.memory.ranks), run=RunDirectory(path), report=one)
        for name, path, one in reports
    ]
    found = Versus(contenders=ranked(contenders), job=f"{len(runs)} runs", apart=_apart(runs))
    losses: Any = [(name, look, one.curves["loss"]) for (name, _, one), look in zip(reports, LOOKS, strict=False)]
    curves = safe_json([curve_data(losses, title="Loss", unit="plain")])
    part = render_part("compare_body.html", **versus_context(found, heading="Runs side by side", first="Run"))
    return part, curves, any(one.outcome.state in GOES_ON for _, _, one in reports)


def _apart(runs: Sequence[tuple[str, Path]]) -> str:
    """How a job differs from that of the first run in what changes results; "" if none does."""
    with suppress(JobError):  # of a run without its job nothing is known
        (first, job), *others = ((name, read_job(RunDirectory(path).resolved).to_json()) for name, path in runs)
        for name, other in others:
            if (found := next(differences(job, other), None)) is not None:
                has = f"{first} has {found[0]} = {json.dumps(found[1])}, and {name} has {json.dumps(found[2])}"
                return f"{has}: different jobs, so that step times and losses are not of the same work"
    return ""


def page_file(name: str) -> str:
    """A style sheet or a script of the pages, with the licence of what is not Shardwise's own."""
    licence = f"/*!\n{static_text('uplot.LICENSE.txt')}*/\n" if name == "uplot.min.js" else ""
    return licence + static_text(name)
