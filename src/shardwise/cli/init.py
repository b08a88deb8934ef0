"""`shardwise init`: five questions, and a job file with comments."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from shardwise import api
from shardwise.errors import InputError

_QUESTIONS = {
    "model": ("Which model? (hub id, folder or catalogue name)", "Qwen/Qwen3-8B"),
    "path": ("Which data? (JSONL, JSON, CSV, Parquet, .txt, a folder or a hub id)", "chats.jsonl"),
    "hardware": ("Which GPUs? ('1x RTX-4090', '2 x 8x H100-SXM'; any: compare; this machine)", None),
    "goal": ("What matters? (fastest, cheapest or fewest-gpus)", "fastest"),
    "output_dir": ("Where do results go?", "runs/first"),
}


def init(
    job: Annotated[Path, typer.Argument(metavar="[JOB]", help="The job file to write.")] = Path("job.yaml"),
    model: Annotated[str | None, typer.Option(help="Hub id, folder or catalogue name.")] = None,
    data: Annotated[str | None, typer.Option(help="A file, a folder or a hub id.")] = None,
    hardware: Annotated[str | None, typer.Option(help="As for `plan`; or `this` machine.")] = None,
    goal: Annotated[str | None, typer.Option(help="fastest, cheapest or fewest-gpus.")] = None,
    output_dir: Annotated[str | None, typer.Option(help="Folder of the run.")] = None,
    recipe: Annotated[str | None, typer.Option(metavar="NAME|list", help="Begin with a recipe, or list them.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing: what is not stated has its usual value.")] = False,
) -> None:
    """Write a job file: five questions, or a recipe for a kind of job that people come with.

    Exits 2: bad input, or there is no terminal to ask on.
    """
    from shardwise.spec.job.file import parse_job
    from shardwise.spec.run import write_text

    if recipe == "list":
        for name, text in api.recipes().items():
            typer.echo(f"{name:<18}{text.splitlines()[0].removeprefix('# ')}")
        return
    if job.exists():
        raise InputError(f"{job} is there already; name another file: shardwise init other.yaml")
    answers = dict(zip(_QUESTIONS, (model, data, hardware, goal, output_dir), strict=True))
    if recipe is None:
        answers |= {key: _ask(key, answers[key], yes=yes) for key in answers}
    if answers["hardware"] == "this":
        answers["hardware"] = ""
    text = api.job_of(recipe or api.GENERAL, answers)
    made = parse_job(text, file=str(job))
    wrong = api.problems(
        [
            api.Override.of_flag(f"--{key}", key=key, value=getattr(made, key) or "cpu:1")
            for key in ("model", "hardware")
        ]
    )
    if wrong:
        raise InputError(*wrong)
    try:
        write_text(job, text)
    except OSError as error:
        raise InputError(f"{job} cannot be written: {error.strerror}; name another file") from None
    typer.echo(f"wrote {job}; next: shardwise plan {shlex.quote(str(job))}")
    for path in (one.path for one in made.data.path if Path(one.path).suffix and not Path(one.path).exists()):
        typer.echo(f"note: {path} is not here yet; put your rows there, or name others as data.path in {job}")


def _ask(key: str, given: str | None, *, yes: bool) -> str:
    question, usual = _QUESTIONS[key]
    if given:
        return given
    usual = usual or api.usual_hardware()
    if yes:
        return usual
    if not sys.stdin.isatty():
        raise InputError(
            "init asks on a terminal, and there is none; state --model, --data, --hardware, --goal and --output-dir, "
            "or take usual values with --yes, or begin with --recipe NAME"
        )
    return str(typer.prompt(question, default=usual, err=True))
