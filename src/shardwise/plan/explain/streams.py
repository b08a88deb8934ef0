"""A small event simulation: tasks on the streams of GPUs, each starting when its stream is free and what it waits for
is done. Tasks of one stream run in the order they were added, as kernels on a CUDA stream do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One stretch of work on a stream, in seconds from the beginning.

    Attributes:
        rank: whose stream.
        kind: what is done, in one word.
        busy: seconds of it in which a kernel runs; the rest waits for the host to launch.
    """

    rank: int
    stream: str
    kind: str
    name: str
    start: float
    end: float
    busy: float


@dataclass(kw_only=True)
class Streams:
    """The schedule as it grows."""

    tasks: list[Task] = field(default_factory=list[Task])
    _free: dict[tuple[int, str], float] = field(default_factory=dict[tuple[int, str], float])

    def add(
        self,
        stream: str,
        seconds: float,
        *,
        name: str,
        after: Iterable[int] = (),
        busy: float | None = None,
        rank: int = 0,
        kind: str = "",
        not_before: float = 0.0,
    ) -> int:
        """Puts a task at the end of a stream.

        Args:
            stream: where it runs.
            seconds: how long it takes.
            name: shown in timelines.
            after: tasks that must have ended.
            busy: seconds in which a kernel runs; all of them where it is left out.
            rank: whose stream it is.
            kind: what is done, in one word.
            not_before: a moment before which it cannot start.

        Returns:
            Its number, for `after` of later tasks.
        """
        start = max(self._free.get((rank, stream), 0.0), not_before)
        for number in after:
            start = max(start, self.tasks[number].end)
        end = start + seconds
        self._free[rank, stream] = end
        ran = seconds if busy is None else busy
        self.tasks.append(Task(rank=rank, stream=stream, kind=kind, name=name, start=start, end=end, busy=ran))
        return len(self.tasks) - 1

    @property
    def end(self) -> float:
        """When the last task ends."""
        return max(self._free.values(), default=0.0)

    def busy_seconds(self, *streams: str, rank: int = 0) -> float:
        """Seconds in which a kernel runs on any of a rank's streams, overlaps counted once."""
        mine = (t for t in self.tasks if t.rank == rank and t.stream in streams and t.busy > 0)
        total, reached = 0.0, 0.0
        for start, end in sorted((t.start, t.start + t.busy) for t in mine):
            if end > reached:
                total += end - max(start, reached)
                reached = end
        return total
