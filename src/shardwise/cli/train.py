"""`shardwise train`: run a job and show its progress."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from shardwise import api
from shardwise.cli.console import Sets, make_console
from shardwise.errors import InputError


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
    """Train a job on this machine; run it again to resume it. Under torchrun, this process is one
    rank.

    On several machines: the same command on each, with --nodes, --master and its own --node-rank.

    Exits 0: finished, 1: failed or does not fit, 2: bad input, 130 or 143: stopped by a signal
    after saving.
    """
    from shardwise.cli.progress import ProgressDisplay

    console = make_console()
    with ProgressDisplay(console) as progress:
        how: Any = {"overrides": sets or [], "on_update": progress.show, "replan": not no_replan}
        several = api.Nodes.read(nodes=nodes, node_rank=node_rank, master=master, max_restarts=max_restarts)
        if several is not None:
            if find_batch:
                raise InputError("--find-batch tries steps on one machine; leave it out, or --nodes")
            result = api.train_on_nodes(job, nodes=several, **how)
        else:
            result = api.train(job, max_restarts=max_restarts, find_micro_batch=find_batch, **how)
    for line in closing_lines(result):
        console.print(line, soft_wrap=True)


def closing_lines(result: api.TrainResult) -> list[str]:
    """Where the results are, and what to do with them."""
    run, adapter = result.run, result.report.method != "full"
    steps = "" if result.step is None else f" after {result.step} steps"
    lacks = [f"is missing: {gap.reason}" for gap in result.report.gaps if gap.file == run.report_html.name]
    skipped = result.report.skipped_steps
    final = repr(str(run.final))
    load = f"PeftModel.from_pretrained(model, {final})" if adapter else f"from_pretrained({final})"
    return [
        f"{'finished already' if result.outcome == 'already_finished' else 'finished'}{steps}",
        f"  {'adapter' if adapter else 'model  '}  {run.final}",
        f"  report   {(lacks or [run.report_html])[0]}",
        *([f"  skipped  {skipped} steps, whose gradients overflowed float16 (in the report)"] if skipped else []),
        f"  metrics  {run.metrics}",
        f"  logs     {run.logs}",
        "next:",
        *(f"  shardwise {verb} {run.typed}" for verb in ("report", "chat", "merge")[: 3 if adapter else 2]),
        f"  in Python: {load}",
        "elsewhere:",
        *api.usage(run),
    ]
