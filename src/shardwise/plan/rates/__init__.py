"""Rates: what hardware does in a second: kernels, messages between GPUs, and host copies."""
# What other packages import from here:
# pyright: reportUnusedImport=false

from shardwise.plan.rates.attention_rates import MASKED_ATTENTION
from shardwise.plan.rates.kernels import ATTENTION_BACKWARD, COMPILED_OPERATORS_SHARE, CONTENTION, Device
from shardwise.plan.rates.links import RankGroup, copy_seconds, group_of
