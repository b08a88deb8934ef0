"""Memory: what each rank has alive at every instant of a step, and the peak of that."""
# What other packages import from here:
# pyright: reportUnusedImport=false

from shardwise.plan.memory.forecast import Peaks, forecast_memory, holdings_of, moments
from shardwise.plan.memory.stack import SLICED_LOGIT_BYTES, WHOLE_LOGIT_BYTES, Difference, Zero, peak_of_stack
