"""Search: the executions that a job leaves open, what fits, and the best of it for a goal."""

from shardwise.plan.search.question import Question, ask, on_hardware
from shardwise.plan.search.search import Search, best_alone

__all__ = ["Question", "Search", "ask", "best_alone", "on_hardware"]
