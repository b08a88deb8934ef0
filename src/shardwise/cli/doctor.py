"""`shardwise doctor`: what this machine has, and what it lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwise.cli.trials import AsJson

if TYPE_CHECKING:
    from rich.table import Table

    from shardwise.api import Doctor


def doctor(as_json: AsJson = False) -> None:
    """Say what this machine has and lacks for planning and training, and what to do about it."""
    from shardwise import api
    from shardwise.cli.console import make_console, print_json

    found = api.doctor()
    if as_json:
        print_json(found.to_json())
        return
    console = make_console()
    console.print(_table(found))
    console.print()
    for finding in found.findings:
        console.print(f"{finding.severity}: {finding.what}")
        console.print(f"  -> {finding.hint}")
    if found.findings:
        console.print()
    console.print("this machine can plan and train" if found.can_train else "this machine can plan, but not train")


def _table(found: Doctor) -> Table:
    from rich.table import Table

    from shardwise.units import format_bytes

    table = Table(box=None, padding=(0, 1), pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    facts = found.facts
    gpus = [f"{gpu['name']}, {format_bytes(gpu['memory_bytes'])}" for gpu in facts["gpus"]]
    rows = [
        ("system", str(facts["system"])),
        ("python", f"{facts['python']} ({facts['executable']})"),
        ("processor", f"{facts['cpu']}, {facts['cores']} cores"),
        ("memory", f"{format_bytes(facts['available_memory_bytes'])} available"),
        ("disk", f"{format_bytes(facts['disk_free_bytes'])} free here"),
        ("GPUs", "; ".join(gpus) or "none"),
        ("driver", str(facts["driver"] or "none")),
        ("C compiler", str(facts["c_compiler"] or "none")),
    ]
    for name, value in [*rows, *facts["libraries"].items()]:
        table.add_row(name, value or "not installed")
    return table
