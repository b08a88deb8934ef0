"""`shardwise export`: a plan for torchrun, Slurm, Kubernetes and clouds, or for another trainer"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from shardwise import api
from shardwise.cli.console import Job, Sets
from shardwise.errors import InputError

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
