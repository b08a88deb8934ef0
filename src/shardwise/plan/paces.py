"""Seconds of the steps of executions that differ in nothing but their micro-batch: what they share is computed once.

Copies, messages, and what follows the last backward are the same for all sizes. The seconds found so are those of
`step.step_of`; a test holds the two equal.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from shardwise.plan.endings import endings_of
from shardwise.plan.passes import Frame
from shardwise.plan.pieces import Pieces
from shardwise.plan.pipeline import StageSeconds
from shardwise.plan.step import (
    ends_of,
    frames_of,
    host_seconds,
    last_end,
    send_seconds,
    stage_seconds,
    staged,
)
from shardwise.plan.work import Work

#: Sums are taken in another order than the forecast takes them.
_ROUNDING = 1 - 1e-9


class Pace:
    """How long a step of an execution takes, by its micro-batch.

    Args:
        work: one of the executions, with sequences of the mean length.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._layout = work.execution.layout
        self._frames = frames_of(work)
        self._host = host_seconds(work)

    @cached_property
    def _final(self) -> tuple[Frame, ...]:
        return frames_of(self._work, last_micro_batch=True) if self._work.replicated else self._frames

    @cached_property
    def _endings(self) -> list[float]:
        return [ending.seconds for ending in endings_of(self._work)]

    def seconds(self, pieces: Pieces, *, size: int, micros: int) -> float:
        """Of a step with so many forwards of micro-batches of so many sequences."""
        last = staged(self._final, pieces)[0].backward_pass()
        ends = ends_of(
            self._layout,
            self._stages(pieces, micros),
            last_backward=last.seconds,
            num_micro_batches=micros,
            send=self._send(size),
        )
        return last_end(ends, self._endings) + self._host

    def through_stages(self, pieces: Pieces, *, size: int, micros: int) -> float:
        """Seconds that a step of a pipeline takes at least, with all that its stages send and wait for.

        A rank waits for the first micro-batch, does its own work for all of them, and its last gradients go back
        through the stages before it; where a backward is cut in two, while it makes those of its weights that wait.
        The host's optimizer follows, on the rank that has least for it.
        """
        layout, stages, send = self._layout, self._stages(pieces, micros), self._send(size)
        if layout.schedule == "sequential":
            return micros * sum(stage.forward + stage.backward for stage in stages) * _ROUNDING
        deferred = layout.schedule == "zero_bubble"
        longest = before = behind = 0.0
        for rank in range(layout.pp):
            own = [stages[stage] for stage in layout.stages_of(rank)]
            waiting = deferred * min(rank + 1, micros) * sum(stage.weights for stage in own)
            work = micros * sum(stage.forward + stage.backward for stage in own)
            longest = max(longest, before + work + max(0.0, behind - waiting))
            before += stages[rank].forward + send
            behind += stages[rank].backward - deferred * stages[rank].weights + send
        # On a GPU it takes next to no time, and long to find out.
        least = min(self._endings) if self._work.execution.optimizer_on_host else 0.0
        return (longest + least + self._host) * _ROUNDING

    def _stages(self, pieces: Pieces, micros: int) -> tuple[StageSeconds, ...]:
        return stage_seconds(staged(self._frames_of(micros), pieces))

    def _frames_of(self, micros: int) -> tuple[Frame, ...]:
        """What is sent once for a step is shared by its micro-batches."""
        execution = self._work.execution
        if not execution.postpones_reduction:
            return self._frames
        return frames_of(replace(self._work, execution=replace(execution, gradient_accumulation_steps=micros)))

    def _send(self, size: int) -> float:
        return send_seconds(self._work, micro_batch_size=size)
