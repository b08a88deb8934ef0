"""One rank of a training (`programs/worker.py`).

It reads the run directory and nothing else, and leaves its results and, if it fails, the cause
there.
"""

import gc
import itertools
import os
import platform
import sys
import time
import traceback
from contextlib import suppress
from typing import Any, cast

import torch
import torch.distributed as dist

from shardwise import __version__
from shardwise.catalog.probe import version_of
from shardwise.errors import InputError, RunDirectoryError
from shardwise.models.routing import noise_left_out
from shardwise.parallel.mesh import join_world, own_device
from shardwise.spec.begin import awaited_family, wait_to_begin
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.file import read_job
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.file import read_plan
from shardwise.spec.plan.forecast import MemoryForecast
from shardwise.spec.run import LAUNCH, RunDirectory, forget_steps_after, note_start, read_json, write_json
from shardwise.train.build import Build, build
from shardwise.train.device import check_device, check_memory, explained
from shardwise.train.guards.checks import agree, check_batches, check_layout, check_replicas, check_trained, gather
from shardwise.train.guards.read_back import together
from shardwise.train.loop import LoopOutcome, train
from shardwise.train.measuring.memory import Held, held
from shardwise.train.measuring.metrics import peak_flops
from shardwise.train.precision import TYPES
from shardwise.train.saving.atomic import SaveError, remove_leftovers
from shardwise.train.saving.final import save_final
from shardwise.train.watching.journal import Journal
from shardwise.train.watching.progress import Progress, stated_seconds
from shardwise.train.watching.watchdog import StopFlag, Watch, ended_after

#: Pending writes end before process groups are destroyed: ranks do not wait longer for peers.
TEARDOWN_SECONDS = 10.0


def run_rank(run: RunDirectory) -> int:
    """Runs one rank of a run directory; returns the exit status."""
    if (family := awaited_family()) is not None:
        # Imports take seconds, which the preparation of data takes too.
        preload_libraries(run, family)
        wait_to_begin()
    journal = Journal(run=run, rank=int(os.environ.get("RANK", "0")))
    stop = StopFlag()
    watch = Watch(journal, stop)
    stop.listen()
    journal.started()  # from here on signals are passed on to this process
    try:
        alone = os.environ.get("WORLD_SIZE", "1") == "1"
        journal.progress = Progress(stated_seconds=stated_seconds(), alone=alone)
        watch.start()
        outcome = _run(run, journal=journal, stop=stop, watch=watch)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever ends a rank is a cause, and ends the process below
        # The cause is for the launcher, if the disk takes it; the traceback goes to the rank's log.
        with suppress(OSError):
            journal.failed(explained(error, run=run, rank=journal.rank, holding=journal.holding))
        if isinstance(error, InputError):
            print(f"error: {error}", file=sys.stderr, flush=True)
            status = error.exit_code
        else:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        os._exit(status)
    watch.over()
    # The signal is for clusters that watch this process; to our own launcher, which reads
    # outcome.json, every other status than 0 is a failure.
    status = 128 + outcome.signal if outcome.signal and LAUNCH not in os.environ else 0
    # Not above: after a failure the others may never join a teardown, which would wait for them.
    with ended_after(TEARDOWN_SECONDS, status):
        dist.destroy_process_group()
    return status


def _run(run: RunDirectory, *, journal: Journal, stop: StopFlag, watch: Watch) -> LoopOutcome:
    job, execution, hardware, forecast, planned = read_request(run)
    _set_environment(job)
    check_device(hardware)
    # Before peers wait for this rank, and before any weight is read.
    check_memory(hardware, forecast, own_device())
    world = join_world(execution.layout)
    watch.joined(world)
    fingerprint = (read_json(run.data) or {}).get("fingerprint")
    libraries = {name: version_of(name) for name in ("torch", "transformers", "peft", "safetensors")}
    versions = {"python": platform.python_version(), "shardwise": __version__, **libraries}
    # Ranks that differ here would wait for each other, or train different models, unnoticed.
    agree(world, {"job": job.to_json(), "execution": execution.to_json(), "data": fingerprint, "versions": versions})
    if world.is_first:
        remove_leftovers(run.root)
        run.outcome.unlink(missing_ok=True)
    import_schedules(job)
    began = time.monotonic()
    peak, peak_source = peak_flops(world.device, TYPES[execution.precision].compute)
    if world.is_first:
        sees = {
            "device": torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu",
            "world_size": world.size,
            "threads_per_process": torch.get_num_threads(),
        }
        write_json(run.environment, {**versions, **sees, "peak_flops": peak, "peak_flops_source": peak_source})
    composed = build(run, job, execution, world=world, journal=journal, peak_flops=peak)
    model = composed.model
    journal.holding = lambda: _held(composed)
    check_layout(world, model.parameters, ownership=model.ownership, elements=model.elements)
    check_trained(world, model.parameters, ownership=model.ownership, planned=planned)
    journal.enter("types", **composed.types.start_line(together(gather(world, composed.types.read_back()))))
    start, total = composed.checkpoints.restore(), composed.batches.total_steps
    journal.step = start
    if start > total:
        raise RunDirectoryError(f"{run.root} has trained {start} steps, and the job asks for {total}; raise its length")
    check_replicas(world, model.parameters, when="at the start")
    if world.is_first:
        journal.note(lambda: forget_steps_after(run, start))
    if start:  # the schedule goes on where it was
        composed.schedule.last_epoch = start - 1
        composed.schedule.step()
    for sentence in filter(None, (job.train.warning_of_warmup(total), noise_left_out(model.result.model.config))):
        journal.warn(sentence)
    for batch in itertools.islice(composed.batches.from_(start), 1):
        check_batches(world, batch, composed.data)
    if world.is_first:
        begun = {"first_step": start + 1, "world_size": world.size, "peak_flops": peak, "hardware": hardware.name}
        journal.note(lambda: note_start(run, {**begun, "execution": execution.to_json()}))
    composed.metrics.meter.begin()
    gc.collect()
    gc.freeze()  # what is there stays, and no collection of later garbage looks at it again
    journal.enter("training", total_steps=total, first_step=start + 1)
    outcome = train(composed, start=start, journal=journal, stop=stop)
    seconds = time.monotonic() - began
    with journal.progress.patient():
        _finish(composed, outcome, run=run, hardware=hardware.name, journal=journal, seconds=seconds)
    return outcome


def read_request(run: RunDirectory) -> tuple[Job, Execution, Cluster, MemoryForecast, int | None]:
    """A run directory's job; its plan's choice, hardware, forecast, and number of trained elements.
    Raises InputError: either is missing or broken, or the plan chose nothing."""
    plan = read_plan(run.plan)
    if (chosen := plan.best) is None:
        raise RunDirectoryError(f"{run.plan} chose no layout, because none fits; plan again with other hardware")
    trained = plan.model.get("num_trainable_parameters")
    return read_job(run.resolved), chosen.execution, Cluster.from_json(plan.hardware), chosen.memory, trained


def _set_environment(job: Job) -> None:
    leave_out_bitsandbytes(job)
    if job.train.full_determinism:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def _finish(
    composed: Build, outcome: LoopOutcome, *, run: RunDirectory, hardware: str, journal: Journal, seconds: float
) -> None:
    world, meter, mine = composed.world, composed.metrics.meter, _held(composed)
    figures = {
        "rank": world.rank,
        "peak_memory_bytes": meter.peak_bytes,
        "weights": mine.weights,
        "optimizer": mine.optimizer,
        "other": meter.peak_bytes - mine.weights - mine.optimizer,
        "phases": meter.phase_peaks,
        **meter.device_figures(),
    }
    ranks = gather(world, figures)
    types = together(gather(world, composed.types.read_back()))
    name = "stopped" if outcome.signal else "finished"
    # A start behind the last step measures nothing, and what was measured before stands.
    if world.is_first and journal.progress.has_stepped:
        measured = {
            "version": 1,
            "execution": composed.execution.to_json(),
            "kind": meter.kind,
            "rows_seen": meter.rows_seen,
            "trained_seen": meter.trained_seen,
            "ranks": ranks,
            "dtypes": {**types, **composed.types.as_configured()},
            "train_seconds": seconds,
            "steps": outcome.steps,
            "outcome": name,
            "hardware": hardware,
        }
        journal.note(lambda: write_json(run.measured, measured))
    if not (outcome.signal or composed.is_trial):
        try:
            _, share = composed.job.train.warmup(composed.batches.total_steps)
            save_final(composed.model, run=run, journal=journal, trained=share > 0)
        except SaveError as error:  # a checkpoint, for which nothing is gathered, keeps what was trained
            if outcome.saved or composed.checkpoints.save(outcome.steps):
                again = f"{error}; the same command writes it again from checkpoint-{outcome.steps}"
                raise SaveError(again) from error
            raise
    composed.metrics.trackers.close()
    saved_step = outcome.steps if outcome.saved else None
    journal.outcome(name, signal=outcome.signal or None, saved_step=saved_step)
    journal.enter("done", outcome=name)


def _held(composed: Build) -> Held:
    return held((p for _, p in composed.model.parameters), composed.optimizer, device=composed.world.device)


def preload_libraries(run: RunDirectory, family: str) -> None:
    """Imports a family's module, and PEFT for LoRA. The build reports what cannot be imported."""
    with suppress(Exception):
        job = read_job(run.resolved)
        leave_out_bitsandbytes(job)
        import transformers
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(family, "AutoModelForCausalLM"))
        if job.adapters is not None:
            import peft  # noqa: F401
        import_schedules(job)


def import_schedules(job: Job) -> None:
    """Imports transformers' schedules, and without adapters not PEFT, which comes with them."""
    modules = cast(dict[str, Any], sys.modules)
    hides = job.adapters is None and "peft" not in modules
    if hides:
        modules["peft"] = None
    with suppress(ImportError):  # the build imports them as they are
        import transformers.optimization  # noqa: F401
    if hides:
        del modules["peft"]


def leave_out_bitsandbytes(job: Job) -> None:
    """Makes it seem not installed where nothing is quantised: PEFT's import of it takes seconds."""
    if job.method != "qlora" and not job.train.optimizer_rule.in_8_bits:
        cast(dict[str, Any], sys.modules).setdefault("bitsandbytes", None)
