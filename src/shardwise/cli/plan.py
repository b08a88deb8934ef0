"""`shardwise plan`: does it fit, on what, and how long will it take? `shardwise rehearse`: will
this plan really run, and does it fit?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from shardwise import api
from shardwise.cli.console import AsJson, Job, Sets, figures_table, make_console, plain_table, print_answer, print_json
from shardwise.errors import InputError
from shardwise.units import GIB, format_bytes, format_count, format_gib, format_ranks

if TYPE_CHECKING:
    from shardwise.spec.plan.generation import Generation
    from shardwise.spec.rehearsal import RankRehearsal

LISTS = ("models", "gpus")
TASKS = ("train", "generate")
SOLVE_HELP = "Find the largest max_length, micro_batch_size or lora.r that fits, or the fewest gpus."
FOR_HELP = "Plan for another trainer: accelerate, deepspeed, trl, torchtitan, axolotl or llama-factory."
DTYPE_HELP = "Of --task generate: the type of weights, keys and values; left out: the model's own."


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
    solve: Annotated[str | None, typer.Option(metavar="KEY", help=SOLVE_HELP)] = None,
    task: Annotated[
        str, typer.Option(metavar="train|generate", help="Or: what generating text with the model needs.")
    ] = "train",
    dtype: Annotated[str | None, typer.Option(metavar="float32|bfloat16|float16", help=DTYPE_HELP)] = None,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Rehearse what is chosen, or the next best that fits, and say its peak.")
    ] = False,
    calibrated: Annotated[
        bool, typer.Option("--calibrated", help="Multiply forecasts by what runs like them measured on this machine.")
    ] = False,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="Plan it too with a larger batch, longer rows, one GPU fewer and others.")
    ] = False,
    target: Annotated[str | None, typer.Option("--for", metavar="TARGET", help=FOR_HELP)] = None,
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
    if listed is not None:
        _print_catalogue(listed, make_console())
        return
    if job is None and model is None and not any(text.startswith("model=") for text in sets or []):
        raise InputError("nothing to plan: name a job file, or a model with --model")
    flags = {
        "--model": ("model", model),
        "--method": ("method", method),
        "--hardware": ("hardware", hardware),
        "--max-length": ("data.max_length", max_length),
        "--global-batch-size": ("train.global_batch_size", global_batch_size),
    }
    stated = {flag: pair for flag, pair in flags.items() if pair[1] is not None}
    given = [api.Override.of_flag(flag, key=key, value=value) for flag, (key, value) in stated.items()]
    overrides = [*given, *(sets or [])]
    one_of = {"solve": solve, "rehearse": rehearse, "calibrated": calibrated, "what_if": what_if, "for": target}
    _refuse_together(task=task, dtype=dtype, draws=bool(timeline or html or output), **one_of)
    if task == "generate":
        needed = api.generation(job, overrides=overrides, dtype=dtype)
        print_answer(needed, _print_generation, as_json=as_json)
        if not needed.asked.fits:
            raise typer.Exit(1)
        return
    if rehearse:
        made = api.rehearsed_plan(job, overrides=overrides, on_update=show_rehearsing)
    else:
        made = api.plan(
            job, overrides=overrides, solve=solve, calibrated=calibrated, asks_what_if=what_if, target=target
        )
    if output is not None:
        api.write_plan(made, output)
    if html is not None:
        api.write_plan_page(made, html)
    if as_json:
        print_json(made.to_json())
    else:
        from shardwise.cli.plan_table import print_plan
        from shardwise.cli.timeline_text import print_timeline

        console = make_console()
        print_plan(made, console, verbose=verbose)
        drawn = api.timeline(made) if timeline else None
        if drawn is not None:
            print_timeline(drawn, console)
    if made.best is None:
        raise typer.Exit(1)


def _refuse_together(*, task: str, dtype: str | None, draws: bool, **asked: object) -> None:
    """Raises InputError: two are asked for of which each is a question of its own. `draws`:
    --timeline, --html or --output; `asked`: other options, each with what is stated of it."""
    several = [f"--{name.replace('_', '-')}" for name, value in asked.items() if value]
    if task not in TASKS:
        raise InputError(f"--task {task}: there is no such task; write --task {' or --task '.join(TASKS)}")
    if task == "generate" and (several or draws):
        kept = ", ".join(f"--{name.replace('_', '-')}" for name in asked)
        raise InputError(f"--task generate has no {kept}, --timeline, --html or --output; leave them out")
    if task == "train" and dtype is not None:
        raise InputError("--dtype is of --task generate; in training types are train.precision and train.save_dtype")
    if len(several) > 1:
        raise InputError(f"{' and '.join(several)} exclude each other; keep one, then ask for the other")


def _print_catalogue(kind: str, console: Console) -> None:
    """A line for each entry: its name, and its size. Raises InputError: there is no such list."""
    from shardwise.spec.plan.offers import format_dollars

    if kind not in LISTS:
        raise InputError(f"--list {kind}: there is no such list; write --list {' or --list '.join(LISTS)}")
    table = plain_table(show_header=False)
    for model in api.known_models().values() if kind == "models" else ():
        table.add_row(model.name, f"{format_count(model.shape.num_parameters)} parameters", model.hub_id)
    for gpu in [known.gpu for known in api.known_gpus().values()] if kind == "gpus" else ():
        price = "no price known" if gpu.usd_per_hour is None else f"{format_dollars(gpu.usd_per_hour)} an hour"
        table.add_row(gpu.name, format_bytes(gpu.memory_bytes), price)
    console.print(table)


def _print_generation(found: Generation, console: Console) -> None:
    """The answer, and a table by length and sequences; `!`: does not fit the known hardware."""
    console.print(_generation_verdict(found), style="bold", soft_wrap=True)
    kind = "in 4 bits, with adapters" if found.method == "qlora" else f"in {found.type_name}"
    kind += ", with adapters" if found.method == "lora" else ""
    token = found.asked.cache_bytes / (found.asked.length * found.asked.sequences)
    lines = [
        f"  weights          {format_bytes(found.weight_bytes)} {kind}",
        f"  keys and values  {format_bytes(token)} a token, in {found.type_name}",
    ]
    if found.whole_heads_bytes is not None:
        whole = f"{format_bytes(found.whole_heads_bytes)} in programs that keep whole heads"
        lines.append(f"{'':19}of latents, as transformers, vLLM and SGLang keep them; {whole}")
    if found.blocks_without:
        lines.append(f"{'':19}{found.blocks_without} blocks keep a state of one size instead, which is not counted")
    for line in lines:
        console.print(line, soft_wrap=True)
    console.print()
    console.print("GiB of weights, keys and values, by tokens of prompt and answer and by sequences at once:")
    table = figures_table("tokens", *(f"{count:,}" for count in dict.fromkeys(one.sequences for one in found.table)))
    for length in dict.fromkeys(one.length for one in found.table):
        row = [one for one in found.table if one.length == length]
        table.add_row(f"{length:,}", *(f"{one.total_bytes / GIB:.1f}{'!' * (one.fits is False)}" for one in row))
    console.print(table)
    if any(one.fits is False for one in found.table):
        console.print(f"! does not fit on {found.hardware}", style="dim", soft_wrap=True)


def _generation_verdict(found: Generation) -> str:
    from shardwise.spec.plan.offers import format_dollars

    asked, begins = found.asked, f"Generating with {found.model}"
    what = f"{asked.sequences:,} sequences" if asked.sequences > 1 else "one sequence"
    what += f" of {asked.length:,} tokens {'take' if asked.sequences > 1 else 'takes'} {format_gib(asked.total_bytes)}"
    if found.hardware is None or found.capacity_bytes is None:
        return f"{begins} fits on no GPUs on offer: {what}"
    price = "" if found.usd_per_hour is None else f", {format_dollars(found.usd_per_hour)} an hour"
    fits = "fits on" if asked.fits else "does not fit on"
    return f"{begins} {fits} {found.hardware}{price}: {what} of {format_gib(found.capacity_bytes)}"


def rehearse(job: Job, sets: Sets = None, as_json: AsJson = False) -> None:
    """Run the training code of a plan on tensors without numbers, on each distinct rank, and count
    its memory.

    Exits 0: fits, 1: does not, 2: bad input, or something that training would refuse or fail at.
    """
    found = api.rehearse(job, overrides=sets or [], on_update=show_rehearsing)
    print_answer(found, _print_rehearsal, as_json=as_json)
    if not found.fits:
        raise typer.Exit(1)


def show_rehearsing(update: api.Rehearsing) -> None:
    """A line on stderr before each distinct rank."""
    among = "all ranks are alike" if update.total == 1 else f"{update.number} of {update.total} kinds"
    line = f"rehearsing {update.strategy}: rank {update.rank} ({among})"
    make_console(sys.stderr).print(line, style="dim", soft_wrap=True)


def _print_rehearsal(found: api.Rehearsal, console: Console) -> None:
    worst = found.worst
    fits = "fits" if found.fits else "does not fit"
    takes = f"{format_gib(found.reserved_bytes)} of {format_gib(found.capacity_bytes)}"
    answer = f"{found.execution.layout.strategy} {fits} on {found.hardware}: rehearsed peak {takes}"
    console.print(f"{answer}, in {worst.peak_instant}", style="bold", soft_wrap=True)
    if found.eager is not None:
        console.print(f"{found.eager[0].upper()}{found.eager[1:]}", soft_wrap=True)
    for rank in found.ranks:
        console.print(f"\n{format_ranks(rank.ranks)}: peak in {rank.peak_instant}", soft_wrap=True)
        console.print(_parts(rank))
    console.print(f"\nthe largest tensors at the peak of {format_ranks(worst.ranks)}:")
    table = figures_table("part", "size", "tensors", "type", "shape")
    table.add_column("made by", style="dim")
    for group in worst.tensors:
        shape = " x ".join(str(size) for size in group.shape)
        table.add_row(group.part, format_bytes(group.bytes), str(group.count), group.dtype, shape, group.maker)
    console.print(table)
    console.print(f"rehearsed in {found.seconds:.0f} s", style="dim")


def _parts(rank: RankRehearsal) -> Table:
    table = figures_table("", "forecast", "rehearsed", "forecast / rehearsed")
    forecasts = {**rank.forecast.parts, "peak": rank.forecast.peak_bytes}
    for part, size in {**rank.parts, "peak": rank.peak_bytes}.items():
        forecast = forecasts.get(part, 0)
        if size or forecast:
            ratio = f"{forecast / size:.3f}" if size else ""
            table.add_row(part, format_bytes(forecast), format_bytes(size), ratio)
    table.add_row("reserved", "", format_bytes(rank.peak_reserved_bytes), "")
    return table
