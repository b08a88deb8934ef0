"""`probe`: measures the rates of this machine, which plans for it then use."""

import json
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from shardwise.catalog.config import shape_from_data
from shardwise.catalog.devices import cpu_cluster, cpu_model, free_disk, usable_cores
from shardwise.catalog.probe import this_machine
from shardwise.catalog.rates import (
    SAMPLE,
    SAMPLE_LENGTH,
    SAMPLE_ROWS,
    VERSION,
    WRITTEN,
    Rates,
    hardware_file,
    rated,
    write_rates,
)
from shardwise.errors import InputError
from shardwise.launch.processes.command import worker_environment
from shardwise.launch.processes.helpers import run_program
from shardwise.plan.answer import make_plan
from shardwise.spec.data_facts import Lengths
from shardwise.spec.job.file import job_from_data
from shardwise.units import format_bytes

#: In which a step of the sample model is timed, by the type that it computes in.
_PRECISIONS = {"float32": "fp32", "bfloat16": "mixed"}
#: Of FSDP in the sample model: its blocks; the embedding; norm and head.
_UNITS = SAMPLE["num_hidden_layers"] + 2


def probe(*, processes: int | None = None) -> tuple[Rates, Path]:
    """Measures products, attention, memory, operators, messages and disk, with all ranks at work at
    once. `processes`: CPU processes, or GPUs; None for all. Returns what was measured, and the file
    that holds it. Raises InputError: there are not so many, or a file cannot be written;
    ReportedError: it failed, and said why."""
    machine = this_machine()
    ranks = machine.num_gpus if processes is None else processes
    is_cpu = machine.gpu.kind == "cpu"
    most = usable_cores() if is_cpu else machine.num_gpus
    if not 1 <= ranks <= most:
        what = "cores" if is_cpu else "GPUs"
        raise InputError(f"--processes is {ranks}, and this machine has {most} {what}; expected 1 to {most}")
    environment = worker_environment(os.environ, processes=ranks, kind=machine.gpu.kind)
    program = "shardwise.programs.probe"
    with _scratch(ranks) as folder:
        asked = {"ranks": ranks, "folder": folder}
        measured = json.loads(run_program(program, asked, capture=True, environment=environment))
    sample = measured.pop("sample")
    rates = Rates(
        version=VERSION,
        processor=cpu_model(),
        cores=usable_cores(),
        gpu="" if is_cpu else machine.gpu.name,
        ranks=ranks,
        **measured,
    )
    if is_cpu:
        rates = _with_sample(rates, sample)
    try:
        return rates, write_rates(rates)
    except OSError as error:
        raise InputError(f"{hardware_file()} cannot be written: {error.strerror}; set SHARDWISE_CACHE") from None


@contextmanager
def _scratch(ranks: int) -> Generator[str]:
    """An empty folder on the disk that is measured, for a while. Raises InputError: it is full."""
    here, needed = Path.cwd(), ranks * WRITTEN
    free = free_disk(here)
    if free < 2 * needed:
        raise InputError(
            f"{here} has {format_bytes(free)} of disk free, and a probe writes {format_bytes(needed)}; free some, or "
            "start it in another folder"
        )
    try:
        folder = tempfile.TemporaryDirectory(dir=here, prefix=".probe-", ignore_cleanup_errors=True)
    except OSError as error:
        raise InputError(f"{here} cannot be written: {error.strerror}; start the probe in another folder") from None
    with folder as name:
        yield name


def _with_sample(rates: Rates, seconds: dict[str, float]) -> Rates:
    """The rates with what a step of the sample model takes beyond them; `seconds`: measured."""
    one = replace(rates, ranks=1, message_seconds={})
    over = {kind: seconds[precision] / _forecast(one, precision) for kind, precision in _PRECISIONS.items()}
    rates = replace(rates, step_over_rates=over)
    if rates.ranks == 1:
        return rates
    rates = replace(rates, alone_over_rates=seconds["alone"] / _forecast(rates))
    beyond = seconds["sharded"] - _forecast(rates, layout="fsdp", rows=rates.ranks)
    return replace(rates, unit_seconds=max(0.0, beyond) / _UNITS)


def _forecast(rates: Rates, precision: str = "fp32", *, layout: str | None = None, rows: int = SAMPLE_ROWS) -> float:
    """Seconds of a step of the sample model on one of the processes, or under a layout of all."""
    data = {"path": "rows.jsonl", "max_length": SAMPLE_LENGTH}
    train = {"global_batch_size": rows, "micro_batch_size": 1, "gradient_checkpointing": "none", "precision": precision}
    job = job_from_data({"model": "sample", "method": "full", "data": data, "train": train, "layout": layout or {}})
    plan = make_plan(
        job,
        model=shape_from_data(SAMPLE, file="config.json"),
        cluster=rated(cpu_cluster(num_processes=rates.ranks), rates),
        lengths=Lengths(longest=SAMPLE_LENGTH, mean=SAMPLE_LENGTH, document=None),
    )
    assert plan.best is not None  # noqa: S101  # 12 million parameters fit anywhere
    return plan.best.time.step_seconds
