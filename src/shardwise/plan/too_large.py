"""What is known not to fit, and with it whatever surely needs no less.

Of executions that are alike but for how many ranks share what is sharded, more ranks never need more each, and larger
micro-batches, or more of them in flight, never less: `tests/unit/plan/test_monotone.py` holds that. Not so AdamW in 8
bits, which keeps states of small shards in 32: of that only those are alike that have as many.
"""

from __future__ import annotations

from shardwise.plan.groups import Flying, no_less
from shardwise.spec.execution import Execution


class TooLarge:
    """Executions of one job that do not fit on its GPUs."""

    def __init__(self) -> None:
        self._known: dict[object, list[tuple[int, int, Flying]]] = {}
        self._asked: set[object] = set()

    def note(self, execution: Execution, flying: Flying) -> None:
        """One does not fit, with so many micro-batches in flight (`explorer.Group.in_flight`)."""
        entry = (execution.layout.dp_shard, execution.micro_batch_size, flying)
        self._known.setdefault(_kind(execution), []).append(entry)

    def rules_out(self, execution: Execution, flying: Flying) -> bool:
        """Whether one that needs no more is known not to fit."""
        known, shards, size = self._known.get(_kind(execution)), execution.layout.dp_shard, execution.micro_batch_size
        return known is not None and any(
            shards <= others and size >= other_size and no_less(flying, others_flying)
            for others, other_size, others_flying in known
        )

    def asks_first(self, execution: Execution, flying: Flying) -> bool:
        """Whether this is asked for the first time."""
        key = (_kind(execution), execution.micro_batch_size, flying)
        if key in self._asked:
            return False
        self._asked.add(key)
        return True


def _kind(execution: Execution) -> object:
    """What is alike in all respects but the degrees of data parallelism and the micro-batch."""
    layout = execution.layout
    shards = layout.dp_shard if execution.optimizer == "adamw_8bit" else layout.dp_shard > 1
    data = (layout.dp_replicate > 1, shards, layout.zero_stage, layout.reshard_after_forward)
    return data, layout.tp, layout.pp, layout.cp, layout.schedule, execution.gradient_checkpointing, execution.loss
