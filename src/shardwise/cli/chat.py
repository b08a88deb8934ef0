"""`shardwise chat`: talk to what a run trained."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwise.cli.merge import BaseModel, RunDir


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
        typer.Option(
            "--top-p",
            min=0,
            max=1,
            help="Draw among the likeliest tokens of this probability in all; left out: as the model says.",
        ),
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
    base_model: BaseModel = None,
) -> None:
    """Talk to what a run trained, on all GPUs of this machine or on its processor.

    On a terminal it is a conversation with line editing: an empty line begins a new one, Ctrl-C ends an answer, Ctrl-D
    the session. Elsewhere each line is a question of its own; one that cannot be answered is said on stderr, and those
    after it are answered. Weights and KV cache are counted against free memory before any is taken.

    Exits 1: it does not fit, 2: bad input.
    """
    from shardwise import api

    if base and merged:
        raise typer.BadParameter("--base and --merged exclude each other; keep one")
    part = "merged" if merged else "base" if base else "trained"
    api.chat(
        run_dir,
        part=part,
        prompt=prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        system=system,
        as_json=as_json,
        base_model=base_model,
    )
