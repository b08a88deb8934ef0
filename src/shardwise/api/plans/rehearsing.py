"""`rehearse`: runs a plan's training code on tensors without numbers, on each kind of rank; and
`plan --rehearse`, where what does not fit gives way to the next best."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.api.plans.calibrated import ranked
from shardwise.api.plans.planning import plan
from shardwise.api.plans.shapes import find_model
from shardwise.catalog.models import config_of
from shardwise.errors import DoesNotFitError, HardwareError, UnsupportedError
from shardwise.launch.processes.helpers import rehearsed
from shardwise.plan import memory_of
from shardwise.plan.work import workspace_bytes
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.file import job_from_data
from shardwise.spec.job.keys import Job
from shardwise.spec.job.strict import from_plain
from shardwise.spec.plan.forecast import PARTS, Candidate, Plan, RankMemory, Sentence
from shardwise.spec.rehearsal import RankRehearsal, Rehearsal, Rehearsing, TensorGroup
from shardwise.spec.request import Override
from shardwise.spec.support.trained import rehearsal_refusals
from shardwise.units import format_gib


def rehearse(
    job: Job | str | Path,
    *,
    overrides: Sequence[str | Override] = (),
    on_update: Callable[[Rehearsing], None] | None = None,
) -> Rehearsal:
    """Rehearses what is planned for a job, whether it is forecast to fit or not: two steps of rows
    that are all as long as they may be, at the layout's size. Blocks that are compiled are
    rehearsed eager, with a sentence.

    Args:
        job: a job, a job file, or a plan.json, whose chosen candidate is rehearsed.
        overrides: `key.path=value` as after `--set`.

    Raises:
        InputError: the job cannot be planned, trained or rehearsed as asked; a rank would fail.
        DoesNotFitError: there is nothing to rehearse.
    """
    made = plan(job, overrides=overrides)
    return rehearse_candidate(made, _chosen(made), on_update=on_update)


def refusals(made: Plan, chosen: Candidate) -> list[str]:
    """Why a candidate of a plan is not rehearsed, as sentences."""
    job = job_from_data(made.job)
    return [*chosen.not_trained, *rehearsal_refusals(chosen.execution, find_model(job.model, rope=job.rope_scaling))]


def rehearse_candidate(
    made: Plan, chosen: Candidate, *, on_update: Callable[[Rehearsing], None] | None = None
) -> Rehearsal:
    """Rehearses a candidate. Raises UnsupportedError: it is not rehearsed, or a rank would fail."""
    refused = refusals(made, chosen)
    if refused:
        raise UnsupportedError("\n".join(refused))
    asked, cluster = job_from_data(made.job), Cluster.from_json(made.hardware)
    execution, memory = chosen.execution, chosen.memory
    if execution.compile:
        execution = replace(execution, compile=False)
        memory = memory_of(made, execution)
    began, groups = time.monotonic(), memory.ranks
    ranks = [group.ranks[0] for group in groups]
    question = {
        "job": asked.to_json(),
        "execution": execution.to_json(),
        "ranks": ranks,
        "cuda": cluster.gpu.kind == "cuda",
        **_model(asked.model),
    }

    def begins(rank: int) -> None:
        if on_update is not None:
            number = ranks.index(rank) + 1
            on_update(Rehearsing(strategy=chosen.execution.layout.strategy, rank=rank, number=number, total=len(ranks)))

    answers = rehearsed(question, begins=begins)
    reasons = dict.fromkeys(reason for answer in answers for reason in answer.get("refused", ()))
    if reasons:
        raise UnsupportedError("\n".join(reasons))
    pairs = zip(groups, answers, strict=True)
    return Rehearsal(
        hardware=cluster.name,
        capacity_bytes=chosen.memory.capacity_bytes,
        execution=execution,
        ranks=tuple(_rank(group, answer, cluster=cluster) for group, answer in pairs),
        seconds=time.monotonic() - began,
        compiled=chosen.memory.ranks if chosen.execution.compile else None,
        eager_bytes=memory.peak_reserved_bytes - chosen.memory.peak_reserved_bytes if chosen.execution.compile else 0,
    )


def _chosen(made: Plan) -> Candidate:
    """What is chosen, or else the first candidate. Raises DoesNotFitError: there is none."""
    if made.best is not None:
        return made.best
    if made.candidates:
        return made.candidates[0]
    reasons = dict.fromkeys(f"{one.strategy}: {one.reason}" for one in made.rejected)
    raise DoesNotFitError("\n".join(["there is nothing to rehearse: no layout fits", *reasons, *made.advice]))


def _model(name: str) -> dict[str, Any]:
    """The configuration to build; None for a folder with weights, which are read."""
    folder = Path(name)
    if folder.is_dir() and any(folder.glob("*.safetensors")):
        return {"config": None, "dtype": None}
    return {"config": config_of(name), "dtype": find_model(name).storage_dtype}


def _rank(group: RankMemory, answer: dict[str, Any], *, cluster: Cluster) -> RankRehearsal:
    """With libraries' workspaces and the driver's context, as forecast."""
    context, is_cuda = group.parts["context"], cluster.gpu.kind == "cuda"
    workspace = workspace_bytes(cluster.gpu)
    parts = {part: answer["parts"].get(part, 0) for part in PARTS}
    parts["temporary"] += workspace
    parts["context"] = context
    peak = sum(parts.values())
    return RankRehearsal(
        ranks=group.ranks,
        forecast=group,
        held=answer["held"],
        peak_bytes=peak,
        peak_reserved_bytes=answer["peak_reserved_bytes"] + workspace + context if is_cuda else peak,
        peak_instant=answer["peak_instant"],
        parts=parts,
        instants=answer["instants"],
        tensors=tuple(from_plain(TensorGroup, one) for one in answer["tensors"]),
    )


def rehearsed_plan(
    job: Job | str | Path | None = None,
    *,
    overrides: Sequence[str | Override] = (),
    on_update: Callable[[Rehearsing], None] | None = None,
) -> Plan:
    """As `plan`; candidates are rehearsed in their order until one fits, and have the memory that
    was rehearsed. Where none is forecast to fit, those are of which the forecast leaves it open.
    Raises InputError: as `plan`, or the hardware is open."""
    made = plan(job, overrides=overrides)
    if made.offers is not None:
        raise HardwareError("--rehearse checks a plan for one hardware; name it, such as --hardware '4x RTX-6000-Ada'")
    return with_rehearsals(made, on_update=on_update)


def with_rehearsals(made: Plan, *, on_update: Callable[[Rehearsing], None] | None = None) -> Plan:
    """The plan as rehearsals correct it. Raises UnsupportedError: all fail, not for memory."""
    candidates, failures, tried = list(made.candidates), list[str](), 0
    for index, one in enumerate(candidates):
        if one.fits or one.memory.peak_low_bytes <= one.memory.capacity_bytes:
            tried += 1
            try:
                candidates[index] = _checked(made, one, on_update)
            except UnsupportedError as error:
                failures.append(f"{one.execution.layout.strategy}: {error}")
                fails = Sentence(f"rehearsed, it fails: {error}", "rehearsed")
                candidates[index] = replace(one, fits=False, reasons=(fails,))
            if candidates[index].fits:
                return ranked(made, candidates, chosen=candidates[index], key="rehearsed")
    if failures and len(failures) == tried:
        raise UnsupportedError("\n".join(["every rehearsal fails", *failures]))
    return ranked(made, candidates, chosen=None, key="rehearsed")


def _checked(made: Plan, one: Candidate, on_update: Callable[[Rehearsing], None] | None) -> Candidate:
    """A candidate with what its rehearsal says. Raises UnsupportedError: a rank fails in it."""
    refused = refusals(made, one)
    if refused:
        said = (Sentence(f"not rehearsed: {reason}", "always") for reason in refused)
        return replace(one, reasons=(*one.reasons, *said))
    found = rehearse_candidate(made, one, on_update=on_update)
    ranks = found.as_planned
    peak = max(rank.peak_bytes for rank in ranks)
    memory = replace(
        one.memory,
        peak_bytes=peak,
        peak_reserved_bytes=max(peak, found.worst.peak_reserved_bytes - found.eager_bytes),
        peak_low_bytes=peak,
        peak_high_bytes=max(peak, found.reserved_bytes),
        peak_instant=found.worst.peak_instant,
        ranks=ranks,
    )
    kept = one.reasons if one.fits and found.fits else ()
    return replace(one, fits=found.fits, memory=memory, reasons=(*kept, _sentence(one, found)))


def _sentence(one: Candidate, found: Rehearsal) -> Sentence:
    said = (
        f"rehearsed, it {'fits' if found.fits else 'does not fit'}: {format_gib(found.reserved_bytes)} of "
        f"{format_gib(found.capacity_bytes)} in {found.worst.peak_instant}; the forecast is "
        f"{format_gib(one.memory.peak_bytes)}, at most {format_gib(one.memory.peak_high_bytes)}"
        f"{'' if found.eager is None else f'; {found.eager}'}"
    )
    return Sentence(said, "rehearsed")
