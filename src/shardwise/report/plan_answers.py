"""What a plan answers beyond whether a job fits: the value it was solved for, and the hardware compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwise.report.pages.render import fragment
from shardwise.spec.plan import Plan

if TYPE_CHECKING:
    from markupsafe import Markup


def answers(plan: Plan) -> Markup:
    """The answers as sections; empty where a plan was all that was asked for."""
    return fragment("answers.html", solved=plan.solved, offers=plan.offers)
