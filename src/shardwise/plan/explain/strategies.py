"""What each part of a strategy does, in words, and which of a plan's sentences is the main one."""

from __future__ import annotations

from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.forecast import Plan

_ONE_AT_A_TIME = "layers lie on different GPUs, in stages of which one works at a time"

#: What a strategy does, for the reasons of a choice.
_DOES = {
    "single": "everything fits on one GPU",
    "ddp": "copies of the model work on different samples, and their gradients are added up",
    "zero1": "optimizer states are sharded; gradients are added up as whole ones, and new weights handed round",
    "zero2": "optimizer states and gradients are sharded; weights gathered for a forward stay for its backward",
    "fsdp": "weights, gradients and optimizer states are sharded; weights are gathered as they are used",
    "hsdp": "sharded inside groups of GPUs, and replicated between the groups",
    "mp": _ONE_AT_A_TIME,
    "pp": "layers lie on different GPUs, in stages that work on different micro-batches at once",
    "tp": "each GPU has a slice of each matrix",
    "cp": "each GPU has two parts of each sequence, and gathers the keys and values of all",
    "ep": "experts lie on different GPUs, and tokens travel to them and back",
}

#: Of those that are the whole strategy: nothing else travels.
_ALONE = {"ddp": "a whole copy fits on every GPU, so only gradients travel"}

#: The same where they would say too much, as something lies in the host's memory.
_ALONE_WITH_HOST = {
    "single": "one GPU is enough, with the host's memory beside it",
    "ddp": "each GPU works on its own, with the host's memory beside it, so only gradients travel between GPUs",
}

#: Where a backward is cut in two, and what it gathers and makes waits for the end of a step.
_POSTPONED = {"zero2": "optimizer states are sharded; gathered weights and whole gradients stay until a step ends"}


def what_it_does(execution: Execution) -> str:
    """What each part of the strategy does here."""
    parts = execution.layout.strategy.split(" x ")
    does = dict(_DOES)
    if len(parts) == 1:
        does |= _ALONE_WITH_HOST if execution.optimizer_on_host else _ALONE
    if execution.postpones_reduction:
        does |= _POSTPONED
    if execution.gradient_accumulation_steps == 1:
        does["pp"] = _ONE_AT_A_TIME
    return "; ".join(f"{name}: {does[name]}" for name in parts)


def main_reason(plan: Plan) -> str:
    """Why it is this layout, or what would fit instead; empty where nothing is said of it."""
    return next(iter(plan.advice), "") if plan.best is None else what_it_does(plan.best.execution)
