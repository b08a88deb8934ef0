"""A run that comes back with fewer or more processes than it was planned for: what is said of it before it goes on."""

from __future__ import annotations

from shardwise.errors import RunDirectoryError
from shardwise.spec.plan.forecast import Plan
from shardwise.spec.run import RunDirectory, read_lines


def replanned(run: RunDirectory, chosen: Plan, *, allowed: bool) -> str | None:
    """A sentence where a run goes on from a checkpoint with another number of processes than it last trained with; None
    elsewhere. Raises RunDirectoryError: it does so, and is not allowed to."""
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
