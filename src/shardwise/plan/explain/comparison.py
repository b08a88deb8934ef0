"""Two candidates that fit: how much worse one is, where, and why a faster one was not taken."""

from shardwise.plan.search import BETTER, RECOMPUTE_ORDER, Question, ratio, tie_of, unmeasured
from shardwise.spec.job.keys import Goal
from shardwise.spec.plan.forecast import Candidate, Sentence, TimeForecast
from shardwise.units import format_seconds

#: Figures that differ by a smaller share are not told apart in words.
_SAME = 5e-4
#: Shares of a step that differ by less are not told apart by whole percents.
_TOLD_APART = 0.01


def named(candidate: Candidate, beside: Candidate) -> str:
    """Its strategy, and its offload where another candidate has another."""
    return f"{candidate.execution.layout.strategy}{with_offload(candidate, beside)}"


def with_offload(candidate: Candidate, beside: Candidate) -> str:
    """The offload of one, behind its name, where the other has another."""
    offload = candidate.execution.offload
    if offload == beside.execution.offload:
        return ""
    return " without offload" if offload == "none" else f" with offload {offload}"


def doubted(candidate: Candidate, question: Question, *, beside: Candidate) -> str | None:
    """Why a candidate is taken only if a quarter faster than another; None where it need not be."""
    one, other = (_doubts(each, question) for each in (candidate, beside))
    return next((why for why in one if why not in other), None)


def _doubts(candidate: Candidate, question: Question) -> list[str]:
    on_host, memory = candidate.execution.parameters_on_host, candidate.memory
    found = {
        "weights lie in the host's memory only where that is needed or a quarter faster": on_host,
        "no GPU has measured such a layout": not on_host and unmeasured(candidate.execution, question.cluster),
        "it leaves no room for a screen that the card may drive": memory.peak_high_bytes
        > memory.capacity_bytes - question.screen_bytes,
    }
    return [why for why, holds in found.items() if holds]


def why_faster(candidate: Candidate, chosen: Candidate, *, question: Question) -> str | None:
    """Why a candidate with a better figure than the chosen one was not taken; None if none has."""
    goal = question.job.goal
    share = ratio(candidate, chosen, goal=goal)
    if share >= 1 or (_num_gpus(candidate) != _num_gpus(chosen) and goal == "fewest-gpus"):
        return None
    doubt = doubted(candidate, question, beside=chosen)
    if doubt is not None:
        return f"{percent(1 - share)} {BETTER[goal][0]}{with_offload(candidate, chosen)}, but {doubt}"
    tie, much = percent(tie_of(question.cluster.gpu)), f"{percent(1 - share)} {BETTER[goal][0]}"
    much += with_offload(candidate, chosen)
    simpler = f"{named(chosen, candidate)} is simpler"
    said = f"{much}, less than the {tie} that forecasts can tell apart, and {simpler}"
    return Sentence(said, short=f"{much}, not as simple")


def why_slower(candidate: Candidate, chosen: Candidate, *, goal: Goal) -> str:
    """By how much a candidate that fits is worse than the chosen one, and what takes the time."""
    share, seconds = ratio(candidate, chosen, goal=goal), candidate.time.step_seconds
    if abs(share - 1) < _SAME and _num_gpus(candidate) == _num_gpus(chosen):
        much = f"takes as long{with_offload(candidate, chosen)}"
        return Sentence(f"{much}, and {named(chosen, candidate)} is simpler", short=f"{much}, not as simple")
    much = f"{percent(share - 1)} {BETTER[goal][1]}" if share < 2 else f"{share:.1f} times {BETTER[goal][2]}"
    num_gpus, others = _num_gpus(candidate), _num_gpus(chosen)
    on = "" if num_gpus == others else f" on {num_gpus} GPUs instead of {others}"
    return (
        f"{much}{with_offload(candidate, chosen)} ({_against(seconds, chosen.time.step_seconds)} a step"
        f"{on}): {_what_takes_longer(candidate, chosen)}"
    )


def _against(one: float, other: float) -> str:
    named = format_seconds(one), format_seconds(other)
    if named[0] == named[1]:
        named = (f"{1e3 * one:.5g} ms", f"{1e3 * other:.5g} ms") if one < 0.1 else (f"{one:.5g} s", f"{other:.5g} s")
    return " against ".join(named)


def _num_gpus(candidate: Candidate) -> int:
    return candidate.execution.layout.world_size


def _spent(candidate: Candidate) -> dict[str, float]:
    time: TimeForecast = candidate.time
    all_of_them = time.step_seconds * _num_gpus(candidate)
    return {
        "talking": (time.gpu_utilization - time.compute_utilization) * all_of_them,
        "waiting": (1 - time.gpu_utilization) * all_of_them,
        "computing": time.compute_utilization * all_of_them,
    }


def _what_takes_longer(candidate: Candidate, chosen: Candidate) -> str:
    mine, best = _spent(candidate), _spent(chosen)
    most = max(mine, key=lambda kind: mine[kind] - best[kind])
    if most != "computing":
        return _how_long(most, (mine[most], candidate), (best[most], chosen))
    recompute, kept = candidate.execution.gradient_checkpointing, chosen.execution.gradient_checkpointing
    if RECOMPUTE_ORDER.index(recompute) > RECOMPUTE_ORDER.index(kept):
        return f"it fits only with gradient_checkpointing {recompute}, which computes forwards again"
    sees, others = _sequences(candidate), _sequences(chosen)
    if sees > others:
        return f"its ranks go through {sees} sequences a step, padding among them, against {others}"
    if candidate.execution.micro_batch_size < chosen.execution.micro_batch_size:
        return f"its micro-batches of {candidate.execution.micro_batch_size} use the GPU less well"
    mine_sliced, best_sliced = (one.execution.layout.ranks_per_row for one in (candidate, chosen))
    if mine_sliced > best_sliced:
        return "its pieces of work are smaller, and use the GPU less well"
    return "what it moves takes the GPU's time beside the same work"


def _how_long(kind: str, mine: tuple[float, Candidate], best: tuple[float, Candidate]) -> str:
    """How much of a step is spent talking or waiting, by GPU seconds of both: as a share, or where
    it is not larger, as seconds of one GPU, or of all."""
    execution = mine[1].execution
    others = ["other stages"] if execution.layout.pp > 1 else []
    host = ["the host"] if execution.offload != "none" else []
    awaited = " or ".join(others + host) or "work to be launched"
    does, do = (f"a GPU waits for {awaited}", f"wait for {awaited}")
    if kind == "talking":
        does, do = "GPUs do nothing but send", "do nothing but send"
    share, before = (seconds / (one.time.step_seconds * _num_gpus(one)) for seconds, one in (mine, best))
    if share - before > _TOLD_APART:
        return f"for {percent(share)} of the time {does}, against {percent(before)}"
    each = [seconds / _num_gpus(one) for seconds, one in (mine, best)]
    if each[0] > (1 + _SAME) * each[1]:
        return f"for {_against(*each)} of a step {does}"
    return f"its GPUs together {do} for {_against(mine[0], best[0])}"


def _sequences(candidate: Candidate) -> int:
    execution = candidate.execution
    return execution.micro_batch_size * execution.gradient_accumulation_steps * execution.layout.data_world_size


def percent(share: float) -> str:
    """A share in words."""
    return "less than 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"
