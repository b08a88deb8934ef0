"""The parent's side of the workers: limits, starts, requests, and why one died.

A hostile chat template must not take the machine. Memory is limited by RLIMIT_DATA, which unlike
RLIMIT_AS leaves out reserved address space. Processor time is limited per batch of rows: the soft
RLIMIT_CPU is moved ahead before each.
"""

import json
import math
import os
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

from shardwise.errors import DataError
from shardwise.units import GIB


@dataclass(frozen=True, kw_only=True)
class WorkerLimits:
    """What a worker may take: memory beyond the loaded tokenizer; time for a batch of rows."""

    memory_bytes: int = 2 * GIB
    cpu_seconds: int = 60


def bound_memory(limits: WorkerLimits) -> None:
    """From now on, allocations beyond the limit fail with MemoryError, or end the process."""
    statm = Path("/proc/self/statm").read_text(encoding="ascii").split()
    held = int(statm[5]) * resource.getpagesize()  # data + stack; proc(5)
    _lower(resource.RLIMIT_DATA, held + limits.memory_bytes)
    _lower(resource.RLIMIT_CORE, 0)


def bound_next_batch(limits: WorkerLimits) -> None:
    """Ends the process by SIGXCPU unless called again within `cpu_seconds` of processor time."""
    _lower(resource.RLIMIT_CPU, math.ceil(time.process_time()) + limits.cpu_seconds)


def _lower(which: int, soft: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(which, (soft, hard))


Request = dict[str, Any]
Reply = dict[str, Any]

MAX_WORKERS = 16


class _Worker:
    """One child process; its stderr goes to a file, because a pipe nobody reads would stop it."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        environment = {
            **os.environ,
            "TOKENIZERS_PARALLELISM": "false",  # the pool is the parallelism
            "OMP_NUM_THREADS": "1",
            "ARROW_DEFAULT_MEMORY_POOL": "system",  # the others reserve arenas that RLIMIT_DATA would count
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shardwise.programs.data_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
            encoding="utf-8",
        )
        self._requests = cast(TextIO, self.process.stdin)
        self.replies = cast(TextIO, self.process.stdout)

    def send(self, request: Request) -> None:
        """Writes a request; a child that has died is found when its reply is read."""
        with suppress(BrokenPipeError):
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()

    def receive(self) -> Reply | None:
        """The next reply, or None where the child has died."""
        line = self.replies.readline()
        return json.loads(line) if line.endswith("\n") else None

    def cause_of_death(self, limits: WorkerLimits) -> str:
        """In words, from the exit status and the last line of stderr."""
        code = self.process.wait()
        if code == -signal.SIGXCPU:
            took = f"took more than {limits.cpu_seconds} s of processor time"
            return f"{took}; shorten the rows or replace the chat template"
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", errors="replace").strip().splitlines()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        last = f": {lines[-1][:300]}" if lines else ""
        return f"ended a worker ({how}){last}"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self._requests, self.replies, self._errors):
            with suppress(BrokenPipeError):  # a request the child never read
                stream.close()


class Pool:
    """Workers that have loaded the same tokenizer and rules. To be closed."""

    def __init__(self, load: Request, *, name: str, num_workers: int, limits: WorkerLimits) -> None:
        self._limits = limits
        self._workers = [_Worker() for _ in range(num_workers)]
        self.facts: Reply = {}
        try:
            for worker in self._workers:
                worker.send(load)
            for worker in self._workers:
                self.facts = _or_raise(self._reply(worker), name=name)
        except BaseException:
            self.close()
            raise

    def run(self, requests: Sequence[Request]) -> Iterator[tuple[int, Reply]]:
        """Yields (index of the request, its reply) as they come: {"error": ...} where a worker died
        or gave up, which gets no more work. Where no worker is left, requests stay unanswered."""
        waiting = iter(range(len(requests)))
        busy: dict[int, int] = {}
        with selectors.DefaultSelector() as selector:
            for number, worker in enumerate(self._workers):
                selector.register(worker.replies, selectors.EVENT_READ, number)
                self._next(number, waiting, busy, requests)
            while busy:
                for key, _ in selector.select():
                    index = busy.pop(key.data)
                    reply = self._reply(self._workers[key.data])
                    if "errno" in reply:  # the cache cannot be written
                        raise OSError(reply["errno"], os.strerror(reply["errno"]))
                    if "error" in reply:
                        selector.unregister(key.fileobj)
                    else:
                        self._next(key.data, waiting, busy, requests)
                    yield index, reply

    def ask(self, request: Request, *, name: str) -> Reply:
        """One request to one worker. Raises DataError: it died or gave up."""
        return _or_raise(next(reply for _, reply in self.run([request])), name=name)

    def keep_one(self) -> None:
        """Ends the workers but one that has not died, which answers what is asked still."""
        kept = next((worker for worker in self._workers if worker.process.poll() is None), self._workers[0])
        for worker in self._workers:
            if worker is not kept:
                worker.close()
        self._workers = [kept]

    def close(self) -> None:
        """Ends all workers."""
        for worker in self._workers:
            worker.close()

    def _next(self, number: int, waiting: Iterator[int], busy: dict[int, int], requests: Sequence[Request]) -> None:
        index = next(waiting, None)
        if index is not None:
            busy[number] = index
            self._workers[number].send(requests[index])

    def _reply(self, worker: _Worker) -> Reply:
        reply = worker.receive()
        return {"error": worker.cause_of_death(self._limits)} if reply is None else reply


def _or_raise(reply: Reply, *, name: str) -> Reply:
    if "error" in reply:
        raise DataError.at(name, reply["error"])
    return reply
