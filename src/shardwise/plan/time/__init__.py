"""Time: seconds of blocks, pipelines, and of a step."""
# What other packages import from here:
# pyright: reportUnusedImport=false

from shardwise.plan.time.passes import StageTime, endings_of
from shardwise.plan.time.pieces import Pieces, masked_share, pieces_of, ran_by
from shardwise.plan.time.pipeline import walk
from shardwise.plan.time.step import (
    ROUNDED,
    forecast_time,
    host_seconds,
    least_seconds_of,
    num_steps,
    stages_of,
    step_of,
)
