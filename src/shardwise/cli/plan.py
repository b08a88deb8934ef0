"""`shardwise plan`: does it fit, on what, and how long will it take?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardwise.cli.trials import AsJson, Sets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from shardwise.spec.request import Override

KINDS = ("models", "gpus")
TASKS = ("train", "generate")


def plan(  # noqa: PLR0913, PLR0917  (a verb's options are its parameters)
    job: Annotated[Path | None, typer.Argument(metavar="[JOB]", help="Job file (YAML); or state --model.")] = None,
    model: Annotated[str | None, typer.Option(help="Hub id, folder, config.json or catalogue name.")] = None,
    method: Annotated[str | None, typer.Option(help="full, lora or qlora.")] = None,
    hardware: Annotated[
        str | None, typer.Option(help="Such as '4x RTX-6000-Ada', '2 x 8x H100-SXM', cpu:4; a list 'A, B'; or any.")
    ] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens per sequence at most.")] = None,
    global_batch_size: Annotated[int | None, typer.Option(help="Sequences per step over all GPUs.")] = None,
    sets: Sets = None,
    solve: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="Find the largest max_length, micro_batch_size or lora.r that fits, or the fewest gpus."
        ),
    ] = None,
    task: Annotated[
        str, typer.Option(metavar="train|generate", help="Or: what generating text with the model needs.")
    ] = "train",
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="float32|bfloat16|float16",
            help="Of --task generate: the type of weights, keys and values; left out: the model's own.",
        ),
    ] = None,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Rehearse what is chosen, or the next best that fits, and say its peak.")
    ] = False,
    calibrated: Annotated[
        bool, typer.Option("--calibrated", help="Multiply forecasts by what runs like them measured on this machine.")
    ] = False,
    as_json: AsJson = False,
    timeline: Annotated[bool, typer.Option("--timeline", help="Show who computes and who waits in a step.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="List every layout that was not chosen, with its reason.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write the plan as one self-contained page.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write plan.json, for `shardwise train`.")] = None,
    listed: Annotated[
        str | None, typer.Option("--list", metavar="models|gpus", help="List the names that the catalogue knows.")
    ] = None,
) -> None:
    """Say whether a job fits, with which layout and on which hardware, and how long a step takes.

    Exits 0: fits, 1: does not, 2: bad input.
    """
    from shardwise import api
    from shardwise.cli.console import make_console, print_json
    from shardwise.cli.rehearse import show_rehearsing
    from shardwise.errors import InputError

    if listed is not None:
        print_catalogue(listed, make_console())
        return
    flags = {
        "--model": ("model", model),
        "--method": ("method", method),
        "--hardware": ("hardware", hardware),
        "--max-length": ("data.max_length", max_length),
        "--global-batch-size": ("train.global_batch_size", global_batch_size),
    }
    if job is None and model is None and not any(text.startswith("model=") for text in sets or []):
        raise InputError("nothing to plan: name a job file, or a model with --model")
    given = [
        api.Override.of_flag(flag, key=key, value=value) for flag, (key, value) in flags.items() if value is not None
    ]
    if task not in TASKS:
        raise InputError(f"--task {task}: there is no such task; write --task {' or --task '.join(TASKS)}")
    if task == "generate":
        if solve or rehearse or calibrated or timeline or html or output:
            raise InputError(
                "--task generate has no --solve, --rehearse, --calibrated, --timeline, --html or --output; leave "
                "them out"
            )
        generate([*given, *(sets or [])], job=job, dtype=dtype, as_json=as_json)
        return
    if dtype is not None:
        raise InputError("--dtype is of --task generate; in training types are train.precision and train.save_dtype")
    refuse_together(rehearse=rehearse, solve=solve, calibrated=calibrated)
    overrides = [*given, *(sets or [])]
    made = (
        api.rehearsed_plan(job, overrides=overrides, on_update=show_rehearsing)
        if rehearse
        else api.plan(job, overrides=overrides, solve=solve, calibrated=calibrated)
    )
    if output is not None:
        api.write_plan(made, output)
    if html is not None:
        api.write_plan_page(made, html)
    if as_json:
        print_json(made.to_json())
    else:
        from shardwise.cli.plan_table import print_plan

        console = make_console()
        print_plan(made, console, verbose=verbose)
        drawn = api.timeline(made) if timeline else None
        if drawn is not None:
            from shardwise.cli.timeline_text import print_timeline

            print_timeline(drawn, console)
    if made.best is None:
        raise typer.Exit(1)


def refuse_together(*, rehearse: bool, solve: str | None, calibrated: bool) -> None:
    """Raises InputError: two of these are asked for."""
    from shardwise.errors import InputError

    if rehearse and solve:
        raise InputError("--rehearse checks the plan of a job as it is; solve first, then rehearse with what was found")
    if calibrated and (rehearse or solve):
        raise InputError(
            "--calibrated multiplies the forecasts of a plan; --rehearse counts in place of them, and --solve looks "
            "for a value by them as they are; ask for one of these"
        )


def generate(overrides: Sequence[str | Override], *, job: Path | None, dtype: str | None, as_json: bool) -> None:
    """Prints what generating needs; typer.Exit(1) where it does not fit."""
    from shardwise import api
    from shardwise.cli.console import make_console, print_json
    from shardwise.cli.generation_table import print_generation

    found = api.generation(job, overrides=overrides, dtype=dtype)
    if as_json:
        print_json(found.to_json())
    else:
        print_generation(found, make_console())
    if not found.asked.fits:
        raise typer.Exit(1)


def print_catalogue(kind: str, console: Console) -> None:
    """A line for each entry: its name, and its size. Raises InputError: there is no such list."""
    from rich.table import Table

    from shardwise import api
    from shardwise.errors import InputError
    from shardwise.spec.plan.offers import format_dollars
    from shardwise.units import format_bytes, format_count

    if kind not in KINDS:
        raise InputError(f"--list {kind}: there is no such list; write --list {' or --list '.join(KINDS)}")
    table = Table(box=None, padding=(0, 1), pad_edge=False, show_header=False)
    for model in api.known_models() if kind == "models" else ():
        table.add_row(model.name, f"{format_count(model.shape.num_parameters)} parameters", model.hub_id)
    for gpu in api.known_gpus() if kind == "gpus" else ():
        price = "no price known" if gpu.usd_per_hour is None else f"{format_dollars(gpu.usd_per_hour)} an hour"
        table.add_row(gpu.name, format_bytes(gpu.memory_bytes), price)
    console.print(table)
