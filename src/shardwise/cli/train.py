"""`shardwise train`: run a job and show its progress."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardwise.cli.trials import Sets

if TYPE_CHECKING:
    from shardwise.api import TrainResult


def train(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="Job file (YAML), or the plan.json of `shardwise plan`.")],
    sets: Sets = None,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Restart the workers after a failure, at most this many times.")
    ] = 0,
    no_replan: Annotated[
        bool, typer.Option("--no-replan", help="Refuse to go on with another number of GPUs than a run had.")
    ] = False,
    find_batch: Annotated[
        bool,
        typer.Option(
            "--find-batch",
            help="Try real steps first, upwards from the forecast micro-batch; keep the largest that fits.",
        ),
    ] = False,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            "--nnodes",
            min=1,
            help="How many machines take part, 1 unless stated; start the same on each. Also --nnodes.",
        ),
    ] = None,
    node_rank: Annotated[int | None, typer.Option(min=0, help="Which of them this is, from 0.")] = None,
    master: Annotated[
        str | None, typer.Option(metavar="ADDRESS[:PORT]", help="Where node 0 is reached; port 29500 unless stated.")
    ] = None,
) -> None:
    """Train a job on this machine; run it again to resume it. Under torchrun, this process is one rank.

    On several machines: the same command on each, with --nodes, --master and its own --node-rank.

    Exits 0: finished, 1: failed or does not fit, 2: bad input, 130 or 143: stopped by a signal after saving.
    """
    from shardwise import api
    from shardwise.cli.console import make_console
    from shardwise.cli.progress import ProgressDisplay
    from shardwise.errors import InputError

    console = make_console()
    with ProgressDisplay(console) as progress:
        several = api.Nodes.read(nodes=nodes, node_rank=node_rank, master=master, max_restarts=max_restarts)
        if several is not None:
            if find_batch:
                raise InputError("--find-batch tries steps on one machine; leave it out, or --nodes")
            result = api.train_on_nodes(
                job,
                nodes=several,
                overrides=sets or [],
                on_update=progress.show,
                replan=not no_replan,
            )
        else:
            result = api.train(
                job,
                overrides=sets or [],
                on_update=progress.show,
                max_restarts=max_restarts,
                replan=not no_replan,
                find_micro_batch=find_batch,
            )
    for line in closing_lines(result):
        console.print(line, soft_wrap=True)


def closing_lines(result: TrainResult) -> list[str]:
    """Where the results are, and what to do with them."""
    from shardwise import api

    run = result.run
    steps = "" if result.step is None else f" after {result.step} steps"
    said = "finished already" if result.outcome == "already_finished" else "finished"
    adapter = result.report.method != "full"
    file = run.report_html
    lacks = [f"is missing: {gap.reason}" for gap in result.report.gaps if gap.file == file.name]
    lines = [
        f"{said}{steps}",
        f"  {'adapter' if adapter else 'model  '}  {run.final}",
        f"  report   {(lacks or [file])[0]}",
    ]
    if result.report.skipped_steps:
        lines.append(
            f"  skipped  {result.report.skipped_steps} steps, whose gradients overflowed float16 (in the report)"
        )
    lines += [f"  metrics  {run.metrics}", f"  logs     {run.logs}"]
    load = (
        f"PeftModel.from_pretrained(model, {str(run.final)!r})" if adapter else f"from_pretrained({str(run.final)!r})"
    )
    verbs = ("report", "chat", "merge") if adapter else ("report", "chat")
    lines += ["next:", *(f"  shardwise {verb} {run.root}" for verb in verbs), f"  in Python: {load}"]
    return [*lines, "elsewhere:", *api.usage(run)]
