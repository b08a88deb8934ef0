"""`shardwise chat`: talk to what a run trained."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwise.cli.merge import RunDir


def chat(
    run_dir: RunDir,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Answer this and end; left out: each line of stdin.")
    ] = None,
    base: Annotated[bool, typer.Option("--base", help="Ask the model as it was before training.")] = False,
    merged: Annotated[bool, typer.Option("--merged", help="Ask what `shardwise merge` wrote.")] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer at most.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, help="0 gives the most likely answer.")] = 0.0,
) -> None:
    """Talk to what a run trained, on all GPUs of this machine or on its processor.

    Weights and KV cache are counted against free memory before any is taken. Exits 1: it does not fit, 2: bad input.
    """
    from shardwise import api

    if base and merged:
        raise typer.BadParameter("--base and --merged exclude each other; keep one")
    part = "merged" if merged else "base" if base else "trained"
    api.chat(run_dir, part=part, prompt=prompt, max_new_tokens=max_new_tokens, temperature=temperature)
