"""Consistency checks: figures that can be computed in two ways are compared."""

import operator
from collections.abc import Sequence
from statistics import median

from shardwise.report.contents import Check
from shardwise.report.fields import number, numbers, section, text, whole
from shardwise.report.run_files import Record, Sources, planned
from shardwise.spec.model.flops import model_flops_per_token
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.plan.forecast import Candidate

#: Recorded rates are rounded; a larger difference means another definition of token or second.
RATE_TOLERANCE, MFU_TOLERANCE = 0.005, 0.01

Found = tuple[bool | None, str]


def run_checks(sources: Sources, candidate: Candidate | None) -> tuple[Check, ...]:
    """All checks, in the order they are shown."""
    found = {
        "tokens/s × time = tokens": _tokens(sources.metrics),
        "MFU = model FLOPs per token × tokens/s ÷ (ranks × dense peak FLOP/s)": _mfu(sources),
        "every step is recorded once": _steps(sources.metrics),
        "as many processes ran as were planned": _world_size(sources, candidate),
    }
    return tuple(Check(name=name, passed=passed, detail=detail) for name, (passed, detail) in found.items())


def _tokens(records: Sequence[Record]) -> Found:
    keys = ("tokens_per_second", "step_seconds", "tokens")
    whole_rows = [record for record in records if all(number(record, key) is not None for key in keys)]
    rates, seconds, tokens = (numbers(whole_rows, key) for key in keys)
    product, counted = sum(map(operator.mul, rates, seconds)), sum(tokens)
    if not counted:
        return None, "no step has recorded tokens, seconds and a rate"
    off = (product - counted) / counted
    detail = f"{counted:,.0f} tokens counted; Σ tokens/s × seconds = {product:,.0f} ({100 * off:+.2f} %)"
    return abs(off) <= RATE_TOLERANCE, detail


def _mfu(sources: Sources) -> Found:
    """MFU from its formula and the recorded rate, against the recorded MFU."""
    last = sources.starts[-1] if sources.starts else None
    peak = (last and last.peak_flops) or number(sources.environment, "peak_flops")
    world = (last and last.world_size) or whole(sources.environment, "world_size")
    if not peak or not world:
        return None, "the device's peak rate is not known, so MFU was not measured"
    source = text(sources.environment, "peak_flops_source") or "source not recorded"
    given = f"ranks × peak = {world} × {peak / 1e12:,.4g} TFLOP/s ({source})"
    per_token = _flops_per_token(sources)
    if per_token is None:
        return None, f"{given}; model FLOPs cannot be recomputed from these files"
    given += f"; {per_token / 1e9:,.4g} GFLOP per token"
    given += "; of the last start" if len(sources.starts) > 1 else ""
    records = [r for r in sources.metrics if last is None or r["step"] >= last.first_step]
    pairs = [(number(record, "mfu"), number(record, "tokens_per_second")) for record in records]
    ratios = [per_token * rate / (world * peak) / mfu for mfu, rate in pairs if mfu and rate]
    if not ratios:
        return None, f"{given}; no step has recorded its MFU"
    off = median(ratios) - 1
    return abs(off) <= MFU_TOLERANCE, f"{given}; recomputed against recorded {100 * off:+.2f} %"


def _flops_per_token(sources: Sources) -> float | None:
    """Model FLOPs of a mean training sequence, by `spec.model.flops`; None: a file is missing."""
    tokens, samples = (number(section(sources.data, "train"), key) for key in ("num_tokens", "num_samples"))
    if sources.plan is None or sources.job is None or tokens is None or not samples:
        return None
    try:
        shape = ModelShape.from_json(sources.plan.model)
        return model_flops_per_token(shape, length=tokens / (samples * sources.job.sides), lora=sources.job.adapters)
    except (KeyError, TypeError, OverflowError):
        return None


def _steps(records: Sequence[Record]) -> Found:
    if not records:
        return None, "no step is recorded"
    first, last = records[0]["step"], records[-1]["step"]
    return len(records) == last - first + 1, f"steps {first:,} to {last:,}: {len(records):,} recorded"


def _world_size(sources: Sources, candidate: Candidate | None) -> Found:
    if sources.starts and not sources.starts[-1].ran.may_be(planned(sources.plan)):
        return None, "no start with this plan has begun to train yet"
    world = whole(sources.environment, "world_size")
    if candidate is None or world is None:
        return None, "one of the two is not known"
    wanted = candidate.execution.layout.world_size
    return wanted == world, f"{wanted} planned, {world} ran"
