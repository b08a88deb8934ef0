"""Time: seconds of kernels, messages, blocks, pipelines, and of a step."""

from shardwise.plan.time.forecast import forecast_time
from shardwise.plan.time.step import Step, step_of

__all__ = ["Step", "forecast_time", "step_of"]
