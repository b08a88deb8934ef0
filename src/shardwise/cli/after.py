"""What is done after a run or a plan: `shardwise report`, `merge`, `chat` and `export`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from shardwise import api
from shardwise.cli.console import AsJson, Job, RunDir, Sets, figures_table, make_console, print_json
from shardwise.errors import InputError, RunDirectoryError

_PLACE, _MOVED = "FOLDER_OR_ID", "Where the base model lies, if it has moved; another model is refused."


def merge(
    run_dir: RunDir,
    output: Annotated[Path | None, typer.Option(metavar="DIR", help="Write here instead of RUN_DIR/merged.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; left out: the base model's.")] = None,
    dequantised: Annotated[
        bool, typer.Option("--dequantised", help="QLoRA: into the base as training computed with it.")
    ] = False,
    base_model: Annotated[str | None, typer.Option("--base", "--base-model", metavar=_PLACE, help=_MOVED)] = None,
    as_json: AsJson = False,
) -> None:
    """Merge a run's adapter into its base model, and compare the logits of both.

    Exits 0: merged, 1: the logits differ, 2: bad input, such as a base model that has changed
    since.
    """
    made = api.merge(run_dir, output=output, dtype=dtype, dequantised=dequantised, base_model=base_model)
    if as_json:
        print_json(made)
    else:
        make_console().print("\n".join(merged_lines(made, run_dir)), soft_wrap=True)


def merged_lines(made: dict[str, Any], run_dir: Path) -> list[str]:
    """What was merged, how far its logits are those of what was trained, and what to do with it."""
    folder, before, double = made["folder"], made.get("dtype_before"), made.get("float64_difference")
    how = {"unquantised": ", which is not in 4 bits as it was in training", "dequantised": " in 4 bits, dequantised"}
    changed = f"; it was {before} before" if before not in (None, made["dtype"]) else ""
    lines = [
        f"merged the adapter {run_dir / 'final'} into its base {made['base']}{how.get(made['onto'], '')}",
        f"  model    {folder}, {made['dtype']}{changed}",
        *([f"  kept     {', '.join(made['kept'])}: not written by a merge"] if made.get("kept") else []),
        f"largest difference of a logit from what was trained: {made['difference']:.1e}, and "
        f"{made['exact_difference']:.1e} on one base without rounding; of {made['rows']}, computed in "
        f"{made['computed_in']}, whose largest logit is {made['largest_logit']:.1f}",
    ]
    if double is not None:
        lines.append(f"  the adapter's updates are large, and float32 rounds so much; in float64 it is {double:.1e}")
    if Path(folder) == run_dir / "merged":
        lines.append(f"ask it: shardwise chat {shlex.quote(str(run_dir))} --merged")
    elsewhere = api.model_lines(folder, dtype=made["dtype"], stops=made.get("stops", []))
    return [*lines, "elsewhere:", *elsewhere, *api.publishing(Path(folder))]


def chat(  # noqa: PLR0913, PLR0917  (a verb's options are its parameters)
    run_dir: RunDir,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Answer this and end; left out: each line of stdin.")
    ] = None,
    base: Annotated[bool, typer.Option("--base", help="Ask the model as it was before training.")] = False,
    merged: Annotated[bool, typer.Option("--merged", help="Ask what `shardwise merge` wrote.")] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer at most.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, help="0 gives the most likely answer.")] = 0.0,
    top_p: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Draw among the likeliest tokens of this probability; left out: the model's."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="Of draws: the same question has the same answer.")
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A system message, with which each conversation begins.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print an object a line: prompt, answer, tokens, and what stopped it.")
    ] = False,
    base_model: Annotated[str | None, typer.Option("--base-model", metavar=_PLACE, help=_MOVED)] = None,
) -> None:
    """Talk to what a run trained, on all GPUs of this machine or on its processor.

    On a terminal it is a conversation with line editing: an empty line begins a new one, Ctrl-C
    ends an answer, Ctrl-D the session. Elsewhere each line is a question of its own; one that
    cannot be answered is said on stderr, and those after it are answered. Weights and KV cache are
    counted against free memory before any is taken.

    Exits 1: it does not fit, 2: bad input.
    """
    if base and merged:
        raise typer.BadParameter("--base and --merged exclude each other; keep one")
    answering: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p}
    answering |= {"seed": seed, "system": system, "as_json": as_json, "base_model": base_model}
    api.chat(run_dir, part="merged" if merged else "base" if base else "trained", prompt=prompt, **answering)


TARGETS_HELP = (
    "torchrun, slurm, kubernetes or skypilot; accelerate, deepspeed, trl, torchtitan, axolotl, llama-factory "
    "or ms-swift."
)


def export(
    job: Job,
    to: Annotated[str, typer.Option(metavar="TARGET", help=TARGETS_HELP)],
    output: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the files into this folder.")] = None,
    sets: Sets = None,
) -> None:
    """Write what another launcher or trainer needs to run a plan.

    One file is printed; where there are several, or with --output, they are written. Exits 0: done,
    2: the target would train something else than the plan, or bad input.
    """
    made = api.export(job, to=to, overrides=sets or [])
    if output is None and len(made.files) > 1:
        raise InputError(f"--to {to} makes {' and '.join(made.files)}; name a folder for them with --output")
    told, commands = sys.stderr, made.run
    if output is None:
        sys.stdout.write(next(iter(made.files.values())))
    else:
        told, commands = sys.stdout, made.run_with(output)
        for path in api.write_export(made, output):
            print(f"wrote {path}", file=told)
    for sentence in made.said:
        print(f"note: {sentence}", file=told)
    print("next:", *(f"  {line}" for line in commands), sep="\n", file=told)


def report(
    run_dir: RunDir,
    as_json: AsJson = False,
    html: Annotated[bool, typer.Option("--html", help="Print where the page lies, and nothing else.")] = False,
) -> None:
    """Put forecast and measurement side by side; writes report.json and report.html into the run
    directory."""
    made = api.report(run_dir)
    lacks = next((gap.reason for gap in made.gaps if gap.file == "report.html"), None)
    if as_json:
        print_json(made.to_json())
    elif html and lacks is not None:
        raise RunDirectoryError(lacks)
    elif html:
        typer.echo(str(run_dir / "report.html"))
    else:
        print_report(made, console := make_console())
        if lacks is None:
            console.print(f"\npage: {run_dir / 'report.html'}", soft_wrap=True)


def print_report(report: api.Report, console: Console) -> None:
    """The whole report; an error is positive where the forecast was too high."""
    from shardwise.cli.data import print_data

    console.print(f"{report.name}: {report.headline}", style="bold")
    console.print(report.outcome.sentence)
    for setting in report.job:
        if setting.name == "learning rate schedule":  # it has changed on the way
            console.print(f"{setting.name}: {setting.value}", soft_wrap=True)
    table = figures_table("", "forecast", "measured", "error")
    table.add_column("", style="dim")
    for row in report.comparisons:
        table.add_row(row.what, row.written("forecast"), row.written("measured"), row.error_written, row.note)
    console.print()
    console.print(table)
    for line in (*([""] if report.notes else []), *report.notes):
        console.print(line)
    loss, evaluation = report.curves["loss"], report.curves["eval_loss"]
    if loss.first is not None and loss.last is not None:
        console.print(f"\nloss {loss.first:.4f} at the first step, {loss.last:.4f} at the last of {loss.num_recorded}")
    if evaluation.last is not None:
        console.print(f"evaluation loss {evaluation.last:.4f}")
    for check in report.checks:
        if check.passed is False:
            console.print(f"does not agree: {check.name}: {check.detail}")
    if report.rows is not None:
        console.print()
        print_data(report.rows, console)
    for gap in report.gaps:
        console.print(f"missing: {gap.file}: {gap.reason}")
