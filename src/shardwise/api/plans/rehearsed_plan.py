"""`plan --rehearse`: rehearses what is chosen; what does not fit gives way to the next best."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from shardwise.api.plans.calibrated import ranked
from shardwise.api.plans.planning import plan
from shardwise.api.plans.rehearsing import refusals, rehearse_candidate
from shardwise.errors import HardwareError, UnsupportedError
from shardwise.spec.job.keys import Job
from shardwise.spec.plan.forecast import Candidate, Plan, Sentence
from shardwise.spec.rehearsal import Rehearsal, Rehearsing
from shardwise.spec.request import Override
from shardwise.units import format_gib


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
                candidates[index] = replace(
                    one, fits=False, reasons=(Sentence(f"rehearsed, it fails: {error}", "rehearsed"),)
                )
            if candidates[index].fits:
                return ranked(made, candidates, chosen=candidates[index], key="rehearsed")
    if failures and len(failures) == tried:
        raise UnsupportedError("\n".join(["every rehearsal fails", *failures]))
    return ranked(made, candidates, chosen=None, key="rehearsed")


def _checked(made: Plan, one: Candidate, on_update: Callable[[Rehearsing], None] | None) -> Candidate:
    """A candidate with what its rehearsal says. Raises UnsupportedError: a rank fails in it."""
    refused = refusals(made, one)
    if refused:
        return replace(
            one, reasons=(*one.reasons, *(Sentence(f"not rehearsed: {reason}", "always") for reason in refused))
        )
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
