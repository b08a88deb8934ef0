"""The chance that a plan's choice fits, from the errors of measured runs."""

from dataclasses import replace
from math import floor

from shardwise.catalog.measured_errors import OTHERS, OWN, errors_of
from shardwise.catalog.probe import screen_bytes
from shardwise.spec.plan.chance import Chance
from shardwise.spec.plan.forecast import Plan


def with_chance(made: Plan) -> Plan:
    """The plan with its chance; not where nothing fits, nor on CPU processes."""
    best = made.best
    if best is None or made.hardware["node"]["gpu"]["kind"] == "cpu":
        return made
    memory, theirs = best.memory, made.on_stack
    # What the allocator holds is what has to fit, and grows with what it has given out.
    held = memory.peak_reserved_bytes
    if theirs is not None:
        held = theirs.peak_bytes * (memory.peak_reserved_bytes / memory.peak_bytes)
    errors = errors_of(OWN if theirs is None else OTHERS, best.execution.layout)
    # Cards that are rented drive no screen.
    screen = 0 if made.offers else screen_bytes(made.job["hardware"], made.hardware["node"]["gpu"]["name"])
    share = errors.chance_below((memory.capacity_bytes - screen) / held)
    return replace(
        made,
        chance=Chance(
            in_100=min(99, max(1, floor(100 * share))),
            group=errors.name,
            rows=errors.rows,
            sources=errors.sources,
            narrowed_by=_narrowed_by(made),
            screen_bytes=screen,
        ),
    )


def _narrowed_by(made: Plan) -> str:
    """Another trainer's step can only be run; this one's can be counted and measured."""
    if made.on_stack is not None:
        return f"one step of {made.on_stack.target} on such a GPU (torch.cuda.max_memory_reserved)"
    if made.data is None:
        return "shardwise data, which counts how long the rows are"
    return "shardwise plan --rehearse, which counts every tensor"
