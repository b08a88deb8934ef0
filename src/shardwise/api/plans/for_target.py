"""`plan --for`: the plan of a job for another trainer, with what that needs beside."""

from collections.abc import Callable
from dataclasses import replace

from shardwise.catalog.calibration import known_stacks
from shardwise.errors import InputError
from shardwise.interop.chosen import Chosen
from shardwise.interop.narrowed import changed_job, narrowed
from shardwise.interop.targets import TARGETS
from shardwise.plan import on_stack
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.data import SourceSpec
from shardwise.spec.job.keys import Job
from shardwise.spec.plan.forecast import Plan, Sentence, kind_of
from shardwise.units import format_gib

#: Plans a job on a cluster; None is the hardware that the job leaves open.
Planner = Callable[[Job, Cluster | None], Plan]

#: How often memory is taken off the GPUs for what the other trainer needs more, or a batch is made
#: to divide.
_ROUNDS = 8

#: Trainers that people ask for, and why none of their plans would hold.
_NOT_KNOWN = {
    "automodel": "what its steps hold is not known: its recipes ask torch.cuda for a device as they begin (0.7.0), so "
    "that none is measured on a CPU, and of its two published rows the unit of one and the sharding of the other are "
    "not certain",
    "ms-swift": "what its steps hold is not known, and a plan is exported to it all the same",
}


def targets_to_plan_for() -> tuple[str, ...]:
    """Trainers whose memory is known."""
    return tuple(name for name in TARGETS if name in known_stacks())


def plan_for_target(job: Job, target: str, *, cluster: Cluster | None, planned: Planner) -> Plan:
    """The plan of what the target can say, with `on_stack`. Raises InputError: no such target or
    layout; UnsupportedError: what `export` would refuse."""
    if target not in targets_to_plan_for():
        why = _NOT_KNOWN.get(target, "there is no such trainer")
        raise InputError(f"--for {target}: {why}; write one of {', '.join(targets_to_plan_for())}")
    limits, stack = TARGETS[target].limits, known_stacks()[target]
    assert limits is not None  # noqa: S101
    made: Plan | None = None
    for open_job in narrowed(job, limits, cluster=cluster, whole_logits=bool(stack.logit_bytes)):
        made = _that_fits(open_job, target, cluster=cluster, planned=planned)
        if made.best is not None:
            chosen = Chosen.of(made, path="--for")
            if not job.data.path:  # a question without rows: which, is asked where files are written
                rows = job.data.model_copy(update={"path": [SourceSpec(path="rows.jsonl")]})
                chosen = replace(chosen, job=chosen.job.model_copy(update={"data": rows}), steps=chosen.steps or 1)
            TARGETS[target].write(chosen)
            return made
    assert made is not None  # noqa: S101
    return made


def _that_fits(job: Job, target: str, *, cluster: Cluster | None, planned: Planner) -> Plan:
    """The plan that fits with the other trainer's bytes, and whose batch divides, or the last."""
    stack, more = known_stacks()[target], 0
    made = planned(job, cluster)
    for _ in range(_ROUNDS):
        theirs = on_stack(made, stack)
        if made.best is None or theirs is None:
            return made
        narrower = _with_batch_that_divides(job, made)
        if narrower is not None:
            job = narrower
        elif theirs.fits or cluster is None:
            return replace(made, on_stack=theirs)
        else:
            more = max(more + 1, theirs.peak_high_bytes - made.best.memory.peak_high_bytes)
        made = _planned_beside(job, cluster, more=more, planned=planned)
    return replace(made, chosen=None)


def _planned_beside(job: Job, cluster: Cluster | None, *, more: int, planned: Planner) -> Plan:
    """The plan with so many bytes of each GPU taken, but not from what it says a GPU has."""
    if cluster is None or not more:
        return planned(job, cluster)
    gpu = cluster.node.gpu
    less = replace(gpu, reserved_bytes=gpu.reserved_bytes + more)
    made = planned(job, replace(cluster, node=replace(cluster.node, gpu=less)))
    hardware = {**made.hardware, "node": {**made.hardware["node"]}}
    hardware["node"]["gpu"] = {**hardware["node"]["gpu"], "reserved_bytes": gpu.reserved_bytes}
    said = f"of {format_gib(less.usable_bytes)}", f"of {format_gib(gpu.usable_bytes)}"
    whole = (
        replace(
            one,
            memory=replace(one.memory, capacity_bytes=gpu.usable_bytes),
            reasons=tuple(Sentence(reason.replace(*said), kind_of(reason)) for reason in one.reasons),
        )
        for one in made.candidates
    )
    return replace(made, hardware=hardware, candidates=tuple(whole))


def _with_batch_that_divides(job: Job, made: Plan) -> Job | None:
    """The job with a micro-batch that divides what a rank has of the batch, or without the strategy
    whose ranks do not divide it; None where no row fills up."""
    assert made.best is not None  # noqa: S101
    execution, batch = made.best.execution, job.train.global_batch_size
    ranks, size = execution.layout.data_world_size, execution.micro_batch_size
    if size * execution.gradient_accumulation_steps * ranks == batch:
        return None
    if batch % ranks == 0 and job.train.micro_batch_size == "auto":
        share = batch // ranks
        return changed_job(job, train={"micro_batch_size": max(n for n in range(1, size + 1) if share % n == 0)})
    left = [way for way in job.layout if way != execution.layout.strategy] if isinstance(job.layout, list) else []
    return changed_job(job, train={}, layout=left) if left else None
