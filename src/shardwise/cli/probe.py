"""`shardwise probe`: measures this machine, so that its forecasts are no longer nominal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardwise.cli.trials import AsJson

if TYPE_CHECKING:
    from shardwise.api import Rates


def probe(
    processes: Annotated[
        int | None, typer.Option(metavar="N", help="CPU processes, or GPUs, at work at once; left out: all there are.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure in about a minute what this machine reaches: products, attention, memory, messages, disk.

    Plans for this machine then use it. Other programs should not be at work meanwhile.
    """
    from shardwise import api
    from shardwise.cli.console import figures_table, make_console, print_json

    rates, file = api.probe(processes=processes)
    if as_json:
        print_json(rates.to_json())
        return
    console = make_console()
    where = f"{rates.gpu} GPUs" if rates.gpu else f"CPU processes on {rates.cores} cores of {rates.processor}"
    console.print(f"{rates.ranks} {where}, at work at once; of each:", soft_wrap=True)
    table = figures_table("", "")
    for name, figure in lines(rates):
        table.add_row(name, figure)
    console.print(table)
    console.print(f"plans for this machine use these rates from now on: {file}", soft_wrap=True)
    if rates.share_of_cores < DISTURBED:
        console.print(disturbance(rates), soft_wrap=True)


#: Where its processes had less of their cores than this, a probe says so.
DISTURBED = 0.85


def disturbance(rates: Rates) -> str:
    """That others were at work meanwhile, as a sentence."""
    had = f"the probe had {100 * rates.share_of_cores:.0f} % of its cores"
    return f"other programs were at work: {had}, so that these rates are too low; run it again when they have ended"


#: What messages are called in the table.
_TALKS = {
    "all_reduce": "all-reduce",
    "gather": "all-gather",
    "scatter": "reduce-scatter",
    "exchange": "exchange",
    "message": "message",
}


def lines(rates: Rates) -> list[tuple[str, str]]:
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
    found += [
        ("memory, read and written", f"{rates.memory_bytes_per_second / 1e9:,.1f} GB/s"),
        ("the host, for one operator", f"{rates.operator_seconds * 1e6:,.1f} us"),
    ]
    if not rates.gpu:
        found += [
            (f"a step of a small model in {kind}, over what these rates make of it", f"{over:.2f}")
            for kind, over in rates.step_over_rates.items()
        ]
        found.append(("that step in one process on all cores, over the same", f"{rates.alone_over_rates:.2f}"))
    if rates.unit_seconds:
        found.append(("FSDP around a unit, beside its messages", f"{rates.unit_seconds * 1e3:,.2f} ms"))
    found += [
        (f"{_TALKS[name]} of {int(size):,} bytes", f"{seconds * 1e3:,.2f} ms")
        for name, by_size in rates.message_seconds.items()
        for size, seconds in by_size.items()
    ]
    found.append(("disk, written and synced", f"{rates.disk_bytes_per_second / 1e6:,.0f} MB/s"))
    if rates.host_to_device_bytes_per_second:
        found.append(("host to device", f"{rates.host_to_device_bytes_per_second / 1e9:,.1f} GB/s"))
    return found
