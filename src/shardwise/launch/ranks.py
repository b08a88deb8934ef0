"""The ranks that this process has started: they wait, begin, are asked to stop, and are ended."""

import os
import signal
import socket
import subprocess
import uuid
from collections.abc import Collection, Generator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import IO

from shardwise.launch.failure import RankExit
from shardwise.launch.nodes.meeting import Nodes
from shardwise.launch.processes.command import LOOPBACK, open_log, rank_environment, worker_argv, worker_environment
from shardwise.launch.processes.parent_death import leashed
from shardwise.launch.processes.process_tree import end_all
from shardwise.launch.processes.torchrun import Place, joined_environment
from shardwise.spec.begin import LISTENING, NOT_HERE, START_SIGNAL, WAITS
from shardwise.spec.cluster import DeviceKind
from shardwise.spec.run import LAUNCH, RunDirectory


class Ranks:
    """Ranks by number; each waits for `begin`. `launch`: the name of this start, by which its
    processes are found. `exits`: how ranks ended, in the order seen, without those `kill` ended."""

    def __init__(self, run: RunDirectory, *, launch: str) -> None:
        self.exits: list[RankExit] = []
        self._run = run
        self._launch = launch
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._told: set[int] = set()
        self._killed: set[int] = set()

    def start(
        self,
        rank: int,
        *,
        environment: Mapping[str, str],
        keeping: Collection[int],
        family: str = "",
        on_our_end: signal.Signals = signal.SIGTERM,
    ) -> None:
        """Starts a rank that imports what it needs, then waits on stdin for the start signal. It
        has its own session, so that Ctrl-C reaches the launcher alone. `keeping`: descriptors it
        holds open; `family`: the model's; `on_our_end`: its signal when this process ends first."""
        log = open_log(self._run, rank)
        try:
            self._children[rank] = subprocess.Popen(
                leashed(worker_argv(self._run), signal_number=on_our_end),
                env={**environment, LAUNCH: self._launch, WAITS: family},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                bufsize=0,
                start_new_session=True,
                pass_fds=tuple(keeping),
            )
        finally:
            os.close(log)

    def __len__(self) -> int:
        return len(self._children)

    def begin(self) -> None:
        """The run directory is complete."""
        for pipe in self._pipes():
            with suppress(BrokenPipeError):  # the rank has ended, which `look` sees
                pipe.write(START_SIGNAL)
            pipe.close()

    def look(self) -> bool:
        """Notes which ranks have ended; whether any has not."""
        known = self._killed | {end.rank for end in self.exits}
        codes = {rank: child.poll() for rank, child in self._children.items() if rank not in known}
        self.exits += [RankExit(rank=rank, code=code) for rank, code in codes.items() if code is not None]
        return None in codes.values()

    def have_ended(self) -> bool:
        """All of them, whether that was noted or not."""
        return all(child.poll() is not None for child in self._children.values())

    @property
    def failed(self) -> bool:
        """Any has failed."""
        return bool(self._killed) or any(end.code for end in self.exits)

    def pass_on(self, number: signal.Signals) -> None:
        """Sends a signal, once, to each rank that listens to it; importing ranks get it later."""
        for rank, child in self._children.items():
            if rank not in self._told and child.poll() is None and _read_pid(self._run, rank) == child.pid:
                self._told.add(rank)
                child.send_signal(number)

    def kill(self) -> None:
        """Ends the ranks that are left; how they end says nothing."""
        for rank, child in self._children.items():
            if child.poll() is None:
                self._killed.add(rank)
                child.kill()

    def close(self) -> None:
        """Ends all processes of this start, those included that ranks have started."""
        end_all(self._launch)
        for child in self._children.values():
            child.wait()
        for pipe in self._pipes():
            pipe.close()

    def _pipes(self) -> list[IO[bytes]]:
        return [child.stdin for child in self._children.values() if child.stdin is not None]


def _read_pid(run: RunDirectory, rank: int) -> int | None:
    try:
        return int(run.rank_pid(rank).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


@contextmanager
def local_ranks(
    run: RunDirectory,
    *,
    processes: int,
    kind: DeviceKind = "cpu",
    family: str = "",
    lock: int | None = None,
    nodes: Nodes | None = None,
    host: str = LOOPBACK,
    server: socket.socket | None = None,
) -> Generator[Ranks]:
    """Starts the ranks of a run on this machine, `processes` on each; none outlives the block.

    `kind`: `cpu` hides the machine's GPUs from them; `family`: the model's, whose module they
    import while they wait; `lock`: a descriptor that they shall hold open as long as they live;
    `nodes`: the machines of the run, whose ranks end with this process; None for this one alone;
    `host`, `server`: the address of node 0, and on it what listens there: rank 0 goes on with it.
    """
    environment = worker_environment(os.environ, processes=processes, kind=kind, alone=nodes is None)
    first, count = (0, 1) if nodes is None else (nodes.rank * processes, nodes.count)
    with closing(Ranks(run, launch=uuid.uuid4().hex)) as ranks:
        with ExitStack() as taken:
            port = None if nodes is None else nodes.port
            if nodes is None and processes > 1:
                # Rank 0 gets the port as taken here: nobody else can take it; it is on loopback.
                server = taken.enter_context(socket.create_server((LOOPBACK, 0)))
                port = server.getsockname()[1]
            for rank in range(first, first + processes):
                place = rank_environment(rank, processes=processes, port=port, host=host, nodes=count)
                listening = server.fileno() if server is not None and rank == 0 else NOT_HERE
                ranks.start(
                    rank,
                    environment={**environment, **place, **({} if port is None else {LISTENING: str(listening)})},
                    keeping=[one for one in (lock, listening) if one is not None and one != NOT_HERE],
                    family=family,
                    on_our_end=signal.SIGTERM if nodes is None else signal.SIGKILL,
                )
        yield ranks


@contextmanager
def first_rank(run: RunDirectory, place: Place, *, kind: DeviceKind, lock: int, family: str = "") -> Generator[Ranks]:
    """Rank 0 alone, of a group that something else started.

    Its worker is a child, so that someone is left to say how it went: rank 0 shows the progress,
    names one first cause of a failure, and returns to write the report; the trainer itself knows no
    reports. Arguments as for `local_ranks`.
    """
    with closing(Ranks(run, launch=uuid.uuid4().hex)) as ranks:
        # What started the ranks ends them by SIGKILL at last; a worker must not outlive its rank.
        ranks.start(
            place.rank,
            environment=joined_environment(kind),
            keeping=[lock],
            family=family,
            on_our_end=signal.SIGKILL,
        )
        yield ranks
