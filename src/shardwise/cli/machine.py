"""`shardwise doctor`: what this machine has; `shardwise probe`: measures its rates."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from shardwise import api
from shardwise.cli.console import AsJson, figures_table, plain_table, print_answer
from shardwise.units import format_bytes


def doctor(as_json: AsJson = False) -> None:
    """Say what this machine has and lacks for planning and training, and what to do about it."""
    print_answer(api.doctor(), _print_doctor, as_json=as_json)


def _print_doctor(found: api.Doctor, console: Console) -> None:
    console.print(_facts_table(found))
    console.print()
    for finding in found.findings:
        console.print(f"{finding.severity}: {finding.what}\n  -> {finding.hint}")
    if found.findings:
        console.print()
    console.print("this machine can plan and train" if found.can_train else "this machine can plan, but not train")


def _facts_table(found: api.Doctor) -> Table:
    table = plain_table(show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    facts = found.facts
    gpus = [f"{gpu['name']}, {format_bytes(gpu['memory_bytes'])}" for gpu in facts["gpus"]]
    rows = {
        "system": str(facts["system"]),
        "python": f"{facts['python']} ({facts['executable']})",
        "processor": f"{facts['cpu']}, {facts['cores']} cores",
        "memory": f"{format_bytes(facts['available_memory_bytes'])} available",
        "disk": f"{format_bytes(facts['disk_free_bytes'])} free here",
        "GPUs": "; ".join(gpus) or "none",
        "driver": str(facts["driver"] or "none"),
        "C compiler": str(facts["c_compiler"] or "none"),
    }
    for name, value in {**rows, **facts["libraries"]}.items():
        table.add_row(name, value or "not installed")
    return table


def probe(
    processes: Annotated[
        int | None, typer.Option(metavar="N", help="CPU processes, or GPUs, at work at once; left out: all there are.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure in about a minute what this machine reaches: products, memory, messages, disk.

    Plans for this machine then use it. Other programs should not be at work meanwhile.
    """
    rates, file = api.probe(processes=processes)
    print_answer(rates, partial(_print_rates, file=file), as_json=as_json)


def _print_rates(rates: api.Rates, console: Console, *, file: Path) -> None:
    where = f"{rates.gpu} GPUs" if rates.gpu else f"CPU processes on {rates.cores} cores of {rates.processor}"
    console.print(f"{rates.ranks} {where}, at work at once; of each:", soft_wrap=True)
    table = figures_table("", "")
    for name, figure in lines(rates):
        table.add_row(name, figure)
    console.print(table)
    console.print(f"plans for this machine use these rates from now on: {file}", soft_wrap=True)
    if rates.share_of_cores < DISTURBED:
        had = f"the probe had {100 * rates.share_of_cores:.0f} % of its cores"
        too_low = "so that these rates are too low; run it again when they have ended"
        console.print(f"other programs were at work: {had}, {too_low}", soft_wrap=True)


#: Where its processes had less of their cores than this, a probe says so.
DISTURBED = 0.85

#: What messages are called in the table.
_MESSAGES = {
    "all_reduce": "all-reduce",
    "gather": "all-gather",
    "scatter": "reduce-scatter",
    "exchange": "exchange",
    "message": "message",
}


def lines(rates: api.Rates) -> list[tuple[str, str]]:
    """Names and figures."""
    found = [
        (f"{kind} product {shape}", f"{rate / 1e9:,.0f} GFLOP/s")
        for kind, by_shape in rates.product_flops.items()
        for shape, rate in by_shape.items()
    ]
    found += [
        (f"{kind} attention, {way}, of {int(flops) / 1e9:,.2f} GFLOP", f"{seconds * 1e3:,.2f} ms")
        for kind, ways in rates.attention_seconds.items()
        for way, by_flops in ways.items()
        for flops, seconds in by_flops.items()
    ]
    found.append(("memory, read and written", f"{rates.memory_bytes_per_second / 1e9:,.1f} GB/s"))
    found.append(("the host, for one operator", f"{rates.operator_seconds * 1e6:,.1f} us"))
    if not rates.gpu:
        small = "a step of a small model in {}, over what these rates make of it"
        found += [(small.format(kind), f"{over:.2f}") for kind, over in rates.step_over_rates.items()]
        found.append(("that step in one process on all cores, over the same", f"{rates.alone_over_rates:.2f}"))
    if rates.unit_seconds:
        found.append(("FSDP around a unit, beside its messages", f"{rates.unit_seconds * 1e3:,.2f} ms"))
    found += [
        (f"{_MESSAGES[name]} of {int(size):,} bytes", f"{seconds * 1e3:,.2f} ms")
        for name, by_size in rates.message_seconds.items()
        for size, seconds in by_size.items()
    ]
    found.append(("disk, written and synced", f"{rates.disk_bytes_per_second / 1e6:,.0f} MB/s"))
    if rates.host_to_device_bytes_per_second:
        found.append(("host to device", f"{rates.host_to_device_bytes_per_second / 1e9:,.1f} GB/s"))
    return found
