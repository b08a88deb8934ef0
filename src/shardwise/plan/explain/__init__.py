"""Explain: why this execution was chosen, why no other, what would help, and a step's timeline."""
# What other packages import from here:
# pyright: reportUnusedImport=false

from shardwise.plan.explain.comparison import why_faster, why_slower
from shardwise.plan.explain.reasons import why
from shardwise.plan.explain.remedies import in_8_bits, left_frozen, left_wide, remedies, why_not, widened
from shardwise.plan.explain.timeline import timeline_of_plan
from shardwise.plan.explain.worth import too_short
