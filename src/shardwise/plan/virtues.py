"""What each part of a strategy does for an execution, in words: the reason it was looked for at all."""

from __future__ import annotations

from shardwise.spec.execution import Execution

#: What a strategy does, for the reasons of a choice.
_VIRTUES = {
    "single": "everything fits on one GPU",
    "ddp": "a whole copy fits on every GPU, so only gradients travel",
    "zero1": "weights and gradients stay whole and only gradients and new weights travel; optimizer states are sharded",
    "zero2": "optimizer states and gradients are sharded; weights are gathered once per step",
    "fsdp": "weights, gradients and optimizer states are sharded, and gathered layer by layer behind the computation",
    "hsdp": "sharded inside groups, where links are fast, and replicated between them",
    "mp": "layers lie on different GPUs, of which one works at a time",
    "pp": "layers lie on different GPUs, which work on different micro-batches at a time",
    "tp": "each GPU has a slice of each matrix, over links that are fast enough",
    "cp": "each GPU has a slice of each sequence",
}

#: The same of those that would say too much where something lies in the host's memory.
_VIRTUES_WITH_HOST = {
    "single": "one GPU is enough, with the host's memory beside it",
    "ddp": "each GPU works on its own, with the host's memory beside it, so only gradients travel between GPUs",
}


def virtues_of(execution: Execution) -> str:
    """What each part of the strategy does here."""
    virtues = _VIRTUES | _VIRTUES_WITH_HOST if execution.optimizer_on_host else _VIRTUES
    return "; ".join(f"{name}: {virtues[name]}" for name in execution.layout.strategy.split(" x "))
