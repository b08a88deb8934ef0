"""What generating text needs, for the terminal: one answer, and a table by length and number of sequences."""

from __future__ import annotations

from rich.console import Console

from shardwise.cli.console import figures_table
from shardwise.spec.plan.generation import Generation
from shardwise.spec.plan.offers import format_dollars
from shardwise.units import GIB, format_bytes, format_gib


def print_generation(found: Generation, console: Console) -> None:
    """The answer and the table; where the hardware is known, `!` marks what does not fit on it."""
    console.print(verdict(found), style="bold", soft_wrap=True)
    kind = "in 4 bits, with adapters" if found.method == "qlora" else f"in {found.type_name}"
    kind += ", with adapters" if found.method == "lora" else ""
    token = found.asked.cache_bytes / (found.asked.length * found.asked.sequences)
    console.print(f"  weights          {format_bytes(found.weight_bytes)} {kind}", soft_wrap=True)
    console.print(f"  keys and values  {format_bytes(token)} a token, in {found.type_name}", soft_wrap=True)
    if found.whole_heads_bytes is not None:
        whole = f"{format_bytes(found.whole_heads_bytes)} in programs that keep whole heads"
        console.print(
            f"                   of latents, as transformers, vLLM and SGLang keep them; {whole}", soft_wrap=True
        )
    console.print()
    console.print("GiB of weights, keys and values, by tokens of prompt and answer and by sequences at once:")
    counts = list(dict.fromkeys(one.sequences for one in found.table))
    table = figures_table("tokens", *(f"{count:,}" for count in counts))
    for length in dict.fromkeys(one.length for one in found.table):
        row = [one for one in found.table if one.length == length]
        table.add_row(f"{length:,}", *(f"{one.total_bytes / GIB:.1f}{'!' * (one.fits is False)}" for one in row))
    console.print(table)
    if any(one.fits is False for one in found.table):
        console.print(f"! does not fit on {found.hardware}", style="dim", soft_wrap=True)


def verdict(found: Generation) -> str:
    """Whether what is asked fits, in a sentence."""
    asked = found.asked
    what = f"{asked.sequences:,} sequences" if asked.sequences > 1 else "one sequence"
    what += f" of {asked.length:,} tokens {'take' if asked.sequences > 1 else 'takes'} {format_gib(asked.total_bytes)}"
    if found.hardware is None or found.capacity_bytes is None:
        return f"Generating with {found.model} fits on no GPUs on offer: {what}"
    price = "" if found.usd_per_hour is None else f", {format_dollars(found.usd_per_hour)} an hour"
    fits = "fits on" if asked.fits else "does not fit on"
    capacity = format_gib(found.capacity_bytes)
    return f"Generating with {found.model} {fits} {found.hardware}{price}: {what} of {capacity}"
