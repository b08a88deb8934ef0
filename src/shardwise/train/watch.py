"""A thread beside the training: ends a rank that does not get on, and hears signals that the main thread cannot.

The main thread may be inside a collective, in C++, for as long as a peer does not come, and Python runs no handler of
a signal meanwhile. This thread reads signals from a pipe, looks whether anything was marked as done, and, where nothing
was for too long, writes down with the watches of the other ranks who is waited for, and ends the process.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from shardwise.parallel.mesh import World
from shardwise.spec.run import RunDirectory, read_json, write_json
from shardwise.train.journal import Journal
from shardwise.train.progress import LONG_SECONDS
from shardwise.train.signals import StopFlag
from shardwise.train.stall import Counted, StallError, Standing, Verdict, begun, is_waiting, judge, standing

POLL_SECONDS = 1.0

#: How long the watches of other ranks may take to answer, and the first of those that did to write the verdict.
ANSWER_SECONDS, VERDICT_SECONDS = 5.0, 3.0
BRIEFLY_SECONDS = 0.1


class Watch:
    """Of one rank's main thread.

    Attributes:
        end: ends the process with a status.
    """

    def __init__(self, journal: Journal, stop: StopFlag, *, end: Callable[[int], Any] = os._exit) -> None:
        self.end = end
        self._journal = journal
        self._stop = stop
        self._world: World | None = None
        self._over = threading.Event()
        self._still = self._waited = 0.0
        self._seen: tuple[int, tuple[Counted, ...]] = (0, ())

    @property
    def _run(self) -> RunDirectory:
        return self._journal.run

    def start(self) -> None:
        """Begins to watch; ends with the process."""
        threading.Thread(target=self._keep, name="watch", daemon=True).start()

    def joined(self, world: World) -> None:
        """From here on there are peers, each of which has removed what an earlier start of its rank left."""
        self._world = world

    def over(self) -> None:
        """Nothing is left that could hang others, and groups are about to end."""
        self._over.set()
        self._world = None

    def _keep(self) -> None:
        last = time.monotonic()
        while not self._over.is_set():
            limit = self._journal.progress.limit(stopping=bool(self._stop.heard))
            poll = min(POLL_SECONDS, limit / 10)
            self._stop.listen_for(poll)
            if len(self._stop.heard) > 1:
                self.end(128 + self._stop.heard[-1])
            now = time.monotonic()
            # Of the time in which this whole process was stopped, no more counts than between two looks.
            self._count(min(now - last, 2 * poll), untold=limit >= LONG_SECONDS)
            last = now
            if self._waited > limit or (self._still > limit / 2 and self._is_called()):
                self._conclude()
                return

    def _count(self, seconds: float, *, untold: bool) -> None:
        """Adds up for how long nothing was done, and for how much of it that can be held against this rank.

        Args:
            untold: no step tells how long what is being done may take. Then work has no limit, waiting for the next
                collective has none, and waiting for one and the same does.
        """
        before, self._seen = self._seen, (self._journal.progress.count, begun(self._world) if untold else ())
        if self._seen != before:
            self._still = self._waited = 0.0
        self._still += seconds
        self._waited = 0.0 if untold and not is_waiting() else self._waited + seconds

    def _is_called(self) -> bool:
        """Another rank has come to the end of its patience."""
        return self._world is not None and any(self._run.logs.glob("rank_*.standing.json"))

    def _conclude(self) -> None:
        """Says where this rank stands, hears the others, and ends the process; nobody else has the last word then."""
        self._journal.last_word.acquire()
        try:
            print(
                f"{StallError.__name__}: nothing has moved for {self._still:.0f} s. Each thread:",
                file=sys.stderr,
                flush=True,
            )
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
            mine = standing(self._world, rank=self._journal.rank, phase=self._journal.at)
            write_json(self._run.rank_standing(mine.rank), mine.to_json())
            standings = self._answers(mine)
            at = self._journal.before_first_step if self._stop.heard else ""
            verdict = judge(standings, ranks=self._ranks, seconds=self._still, at=at)
            self._write(verdict, first=standings[0].rank)
        except Exception:  # noqa: BLE001  # a disk that is full, or whatever else: no reason to go on waiting
            traceback.print_exc()
        finally:
            self.end(128 + self._stop.heard[0] if self._stop.heard else 1)

    @property
    def _ranks(self) -> range:
        """Those that are asked: all, once they have met."""
        rank = self._journal.rank
        return range(rank, rank + 1) if self._world is None else range(self._world.size)

    def _answers(self, mine: Standing) -> list[Standing]:
        """The standings of all ranks that write theirs in time, by rank."""
        found, deadline = {mine.rank: mine}, time.monotonic() + ANSWER_SECONDS
        while len(found) < len(self._ranks) and time.monotonic() < deadline:
            time.sleep(BRIEFLY_SECONDS)
            for rank in set(self._ranks) - set(found):
                written = read_json(self._run.rank_standing(rank))
                if written is not None:
                    found[rank] = Standing.from_json(written)
        return [found[rank] for rank in sorted(found)]

    def _write(self, verdict: Verdict, *, first: int) -> None:
        """As failures of ranks. The launcher names the earliest: that of the culprit, by the first that answered."""
        rank, cause = self._journal.rank, self._run.rank_failure(verdict.culprit)
        if rank == first:
            self._journal.write_failure(StallError(verdict.sentence), rank=verdict.culprit, phase=verdict.phase)
        deadline = time.monotonic() + VERDICT_SECONDS
        while not cause.exists() and time.monotonic() < deadline:
            time.sleep(BRIEFLY_SECONDS)
        if rank != verdict.culprit:
            self._journal.write_failure(StallError(verdict.sentence), rank=rank, phase=self._journal.at)
