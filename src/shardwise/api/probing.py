"""`probe`: measures the rates of this machine, which plans for it then use."""

from __future__ import annotations

import json
import os
from pathlib import Path

from shardwise.catalog.probe import this_machine
from shardwise.catalog.processors import cpu_model, usable_cores
from shardwise.catalog.rates import VERSION, Rates, hardware_file, write_rates
from shardwise.errors import InputError
from shardwise.launch.processes.command import worker_environment
from shardwise.launch.processes.torch_helpers import run_program


def probe(*, processes: int | None = None) -> tuple[Rates, Path]:
    """Measures products, attention, memory, operators, messages and disk, with all ranks at work at once.

    Args:
        processes: CPU processes, or GPUs; None for all of this machine.

    Returns what was measured, and the hardware file that holds it.
    Raises InputError: there are not so many, or the file cannot be written; ReportedError: it failed, and said why.
    """
    machine = this_machine()
    ranks = processes or machine.num_gpus
    is_cpu = machine.gpu.kind == "cpu"
    most = usable_cores() if is_cpu else machine.num_gpus
    if not 1 <= ranks <= most:
        what = "cores" if is_cpu else "GPUs"
        raise InputError(f"--processes is {ranks}, and this machine has {most} {what}")
    environment = worker_environment(os.environ, processes=ranks, kind=machine.gpu.kind)
    asked = {"ranks": ranks, "folder": str(Path.cwd())}
    measured = json.loads(run_program("shardwise.train.measuring.probe", asked, capture=True, environment=environment))
    rates = Rates(
        version=VERSION,
        processor=cpu_model(),
        cores=usable_cores(),
        gpu="" if is_cpu else machine.gpu.name,
        ranks=ranks,
        **measured,
    )
    try:
        return rates, write_rates(rates)
    except OSError as error:
        raise InputError(f"{hardware_file()} cannot be written: {error.strerror}; set SHARDWISE_CACHE") from None
