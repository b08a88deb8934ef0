"""Explain: why the chosen execution is as it is, why not the others, what would help, and the timeline of a step."""

from shardwise.plan.explain.reasons import advice
from shardwise.plan.explain.remedies import remedies
from shardwise.plan.explain.timeline import timeline_of, timeline_of_plan

__all__ = ["advice", "remedies", "timeline_of", "timeline_of_plan"]
