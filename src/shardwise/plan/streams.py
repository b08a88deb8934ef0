"""A small event simulation: tasks on the streams of one GPU, each starting when its stream is free and what it waits
for is done. Tasks of one stream run in the order they were added, as kernels on a CUDA stream do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One stretch of work on a stream, in seconds from the beginning.

    Attributes:
        busy: seconds of it in which a kernel runs; the rest waits for the host to launch.
    """

    name: str
    stream: str
    start: float
    end: float
    busy: float


@dataclass(kw_only=True)
class Streams:
    """The schedule as it grows."""

    tasks: list[Task] = field(default_factory=list[Task])
    _free: dict[str, float] = field(default_factory=dict[str, float])

    def add(
        self, stream: str, seconds: float, *, name: str, after: Iterable[int] = (), busy: float | None = None
    ) -> int:
        """Puts a task at the end of a stream.

        Args:
            stream: where it runs.
            seconds: how long it takes.
            name: shown in timelines.
            after: tasks that must have ended.
            busy: seconds in which a kernel runs; all of them where it is left out.

        Returns:
            Its number, for `after` of later tasks.
        """
        start = self._free.get(stream, 0.0)
        for number in after:
            start = max(start, self.tasks[number].end)
        self._free[stream] = start + seconds
        task = Task(name=name, stream=stream, start=start, end=start + seconds, busy=seconds if busy is None else busy)
        self.tasks.append(task)
        return len(self.tasks) - 1

    @property
    def end(self) -> float:
        """When the last task ends."""
        return max(self._free.values(), default=0.0)

    def busy_seconds(self, *streams: str) -> float:
        """Seconds in which a kernel runs on any of the streams, overlaps counted once."""
        wanted = sorted((t.start, t.start + t.busy) for t in self.tasks if t.stream in streams and t.busy > 0)
        total, reached = 0.0, 0.0
        for start, end in wanted:
            if end > reached:
                total += end - max(start, reached)
                reached = end
        return total
