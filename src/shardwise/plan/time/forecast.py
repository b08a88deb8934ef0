"""The forecast of time: a step's seconds become throughput, utilisation, and the duration of the run."""

from __future__ import annotations

from shardwise.plan.costs.piece import device_of
from shardwise.plan.time.pieces import Pieces
from shardwise.plan.time.step import step_of
from shardwise.plan.work import Work
from shardwise.spec.job.keys import TrainSpec
from shardwise.spec.model.flops import model_flops_per_token
from shardwise.spec.plan.forecast import TimeForecast


def forecast_time(
    work: Work, *, num_rows: int | None = None, pieces: Pieces | None = None, filled: float = 1.0
) -> TimeForecast:
    """Step time, throughput and utilisations of an execution; the whole run's where the number of rows is known.
    `pieces` of its micro-batch, where they are known; `filled`: the share of its tokens that are no padding, which a
    run's throughput and MFU count alone. Utilisations are means over ranks: under naive model parallel on
    four GPUs, a quarter at most."""
    step = step_of(work, pieces)
    job, gpus = work.job, work.execution.layout.world_size
    tokens = filled * job.train.global_batch_size * job.data.max_length
    flops = tokens * model_flops_per_token(work.model, length=job.data.max_length, lora=job.adapters)
    steps = num_steps(job.train, num_rows=num_rows)
    return TimeForecast(
        step_seconds=step.seconds,
        tokens_per_second=tokens / step.seconds,
        mfu=min(1.0, flops / (step.seconds * gpus * device_of(work).peak)),
        gpu_utilization=min(1.0, step.busy / step.seconds),
        compute_utilization=min(1.0, step.computing / step.seconds),
        total_seconds=None if steps is None else steps * step.seconds,
    )


def num_steps(train: TrainSpec, *, num_rows: int | None) -> int | None:
    """Optimizer steps of the whole run: `max_steps`, or the epochs over the rows; None where neither is known."""
    if train.max_steps is None and num_rows is None:
        return None
    return train.num_steps(-(-(num_rows or 0) // train.global_batch_size))
