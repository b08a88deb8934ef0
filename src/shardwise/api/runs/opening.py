"""The opening of a run: it is accepted, its folder is held, its job and plan are written."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Self

from shardwise.api.plans.counting import KnownData
from shardwise.api.plans.planning import Planning
from shardwise.catalog.gpus import reserved_bytes
from shardwise.errors import DoesNotFitError, Problem, RunDirectoryError, UnsupportedError
from shardwise.launch.follow import Notice, Phase, StepMetrics, tell
from shardwise.launch.lock import check_disk, locked
from shardwise.launch.processes.command import require_torch
from shardwise.launch.processes.helpers import prepare_data
from shardwise.launch.processes.torchrun import Place
from shardwise.launch.processes.workers import forget_last_launch
from shardwise.launch.requirements import check_compiler, check_present, check_trainable, place_of, training_cluster
from shardwise.launch.run_folder import check_same_job, found_before, has_result, known_data, run_of, write_start
from shardwise.spec.data_facts import Known
from shardwise.spec.plan.forecast import Plan
from shardwise.spec.request import Request
from shardwise.spec.run import RunDirectory, read_lines


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What is going to run; sent before anything starts, and again once rows are counted."""

    plan: Plan
    run: RunDirectory


Update = Planned | Phase | StepMetrics | Notice
OnUpdate = Callable[[Update], None] | None


@dataclass(kw_only=True)
class Opening:
    """A start that holds the run directory of its job. `plan`: what it is going to run; `known`:
    what that was made with, of the rows; `lock`: a descriptor, for ranks to inherit."""

    planning: Planning
    run: RunDirectory
    plan: Plan
    known: Known
    lock: int
    on_update: OnUpdate

    @classmethod
    def of(
        cls, request: Request, run: RunDirectory, *, place: Place | None, held: ExitStack, on_update: OnUpdate
    ) -> Self:
        """Accepts what is asked, and takes its folder until `held` ends. Raises as `accept` does;
        RunDirectoryError: another run holds the folder, or is in it."""
        known = known_data(run_of(request.job))
        if known[0] is None:  # the run there has prepared none
            known = KnownData.of(request).known
        planning, plan = accept(request, place=place, known=known)
        with request.blaming("output_dir"):
            lock = held.enter_context(locked(run, say=lambda text: tell([Notice(text=text)], on_update)))
            check_same_job(run, request.job)
        return cls(planning=planning, run=run, plan=plan, known=known, lock=lock, on_update=on_update)

    @property
    def processes(self) -> int:
        """As many as the layout spreads over: `cheapest` and `fewest-gpus` may leave GPUs."""
        return self.planning.cluster.num_gpus if self.plan.best is None else self.plan.best.execution.layout.world_size

    @property
    def family(self) -> str:
        """Of the model, for ranks that import it while they wait."""
        return str(self.plan.model["family"])

    def goes_on(self, *, replan: bool) -> bool:
        """Whether there is something left to train; says where that is with another number of
        processes. Raises DamagedResultError, as `has_result`; RunDirectoryError: `replan` is False,
        and it would be planned again."""
        if has_result(self.run, self.planning.request.job):
            return False
        said = replanned(self.run, self.plan, allowed=replan)
        if said is not None:
            self.say(said)
        forget_last_launch(self.run)
        self.plan = found_before(self.run, self.plan)
        return True

    def say(self, text: str) -> None:
        """Sends a notice."""
        tell([Notice(text=text)], self.on_update)

    def write(self) -> None:
        """Says and writes what is going to run. Raises InputError: its disk is too small."""
        check_disk(self.planning.request, self.run, self.plan)
        tell([Planned(plan=self.plan, run=self.run)], self.on_update)
        write_start(self.run, self.planning.request, plan=self.plan)

    def prepare(self, *, quiet: bool = False) -> None:
        """Prepares the data; the plan that the workers obey then knows how many rows there are.
        `quiet`: what preparation says is shown where it fails only."""
        tell([Phase(name="preparing data", total_steps=None, detail={})], self.on_update)
        prepare_data(self.run, quiet=quiet)
        if (known := known_data(self.run)) != self.known:
            # Only now is it known how many steps there are, and how long the sequences are.
            self.plan = self.planning.plan(known)
            self.write()
        if scarce := check_disk(self.planning.request, self.run, self.plan):
            self.say(scarce)


def accept(request: Request, *, place: Place | None, known: Known) -> tuple[Planning, Plan]:
    """Everything that can be refused without touching a file."""
    require_torch()
    cluster = training_cluster(request, place=place)
    check_trainable(request, cluster=cluster)
    check_present(request, cluster)
    planning = Planning.of(request, cluster=cluster)
    chosen = planning.plan(known)
    if chosen.best is None:
        lacking = [one.rejection for one in chosen.candidates] or chosen.rejected
        reasons = dict.fromkeys(f"{one.strategy}: {one.reason}" for one in lacking)
        nothing = f"nothing fits on {chosen.hardware.get('name', 'this machine')}"
        alone = _would_fit_alone(planning, known)
        raise DoesNotFitError("\n".join([nothing, *chosen.notes, *alone, *reasons, *chosen.advice]))
    check_compiler(request, compiles=chosen.best.execution.compile and cluster.gpu.kind == "cuda")
    if chosen.best.not_trained:
        # What the model's config says is known only here; the rest was refused before.
        otherwise = "model" if request.job.layout == "auto" else "layout"
        places = [place_of(request, reason, otherwise=otherwise) for reason in chosen.best.not_trained]
        pairs = zip(places, chosen.best.not_trained, strict=True)
        raise UnsupportedError([Problem(where=where, message=reason) for where, reason in pairs])
    return planning, chosen


def _would_fit_alone(planning: Planning, known: Known) -> list[str]:
    """A sentence where a job would fit in the memory that other programs hold."""
    cluster, gpu = planning.cluster, planning.cluster.gpu
    kept = reserved_bytes(gpu.memory_bytes)
    if gpu.kind != "cuda" or gpu.reserved_bytes <= kept:
        return []
    free = replace(cluster, node=replace(cluster.node, gpu=replace(gpu, reserved_bytes=kept)))
    if replace(planning, cluster=free).plan(known).best is None:
        return []
    return ["it fits where others leave the GPU to it: end what holds its memory, or wait"]


def replanned(run: RunDirectory, chosen: Plan, *, allowed: bool) -> str | None:
    """A sentence where a run goes on from a checkpoint with another number of processes than it
    last trained with; None elsewhere. Raises RunDirectoryError: it may not."""
    before = next(reversed([*read_lines(run.starts)]), None)
    checkpoints = run.checkpoints()
    if before is None or not checkpoints or chosen.best is None:
        return None
    layout = chosen.best.execution.layout
    if before.get("world_size") == layout.world_size:
        return None
    was, now = before.get("hardware", "other hardware"), chosen.hardware.get("name", "this machine")
    came = f"the run in {run.root} was planned for {was} and comes back with {now}"
    if not allowed:
        raise RunDirectoryError(
            f"{came}, and --no-replan is set; start it with {was} again, or leave --no-replan out to plan it again"
        )
    return (
        f"{came}: it was planned again ({layout.strategy}, {layout.written}) and goes on from {checkpoints[0][1].name} "
        "with the same global batch and the same samples"
    )
