"""Rates: what hardware does in a second: kernels, messages between GPUs, and copies to and from the host."""
# What other packages import from here:
# pyright: reportUnusedImport=false

from shardwise.plan.rates.kernels import (
    ATTENTION_BACKWARD,
    COMPILED_OPERATORS_SHARE,
    COMPILED_PASSES_SHARE,
    CONTENTION,
    COPY_PASSES,
    CPU_OPTIMIZER_BYTES_PER_SECOND,
    DISPATCH_OVER_OPERATOR,
    HOST_SECONDS_PER_STEP,
    HOST_SECONDS_PER_UNIT,
    MASKED_ATTENTION,
    Device,
)
from shardwise.plan.rates.links import Group, copy_seconds, group_of
