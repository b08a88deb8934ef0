"""Runs on machines that are network namespaces, as root, in `make test-nodes`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from shardwise.spec.job.keys import Job
from shardwise.spec.run import RunDirectory, read_metrics
from tests.dist.conftest import make_job, models, rows
from tests.nodes.lab import Node, lacking, machines

__all__ = ["make_job", "models", "rows"]

#: Settings under which a run that cannot go on says so soon.
STALL_SECONDS = 20.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All are slow, and skipped with the reason where there can be no such machines."""
    ours = [item for item in items if "tests/nodes" in str(item.path)]
    reason = lacking() if ours else None
    for item in ours:
        item.add_marker(pytest.mark.slow)
        item.add_marker(pytest.mark.dist)
        item.add_marker(pytest.mark.timeout(600))
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@dataclass(kw_only=True)
class Started:
    """One command on each of some machines."""

    nodes: tuple[Node, ...]
    folder: Path
    run: RunDirectory
    processes: list[Popen[bytes]] = field(default_factory=list[Popen[bytes]])

    def said(self, index: int) -> str:
        """What a machine's terminal shows."""
        return (self.folder / f"{index}.log").read_text(errors="replace")

    def codes(self, seconds: float, *, without: Sequence[int] = ()) -> list[int]:
        """The exit codes, once all have ended; of those that are still there."""
        left = [process for index, process in enumerate(self.processes) if index not in without]
        deadline = time.monotonic() + seconds
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in left]

    def everything(self) -> str:
        """For messages."""
        logs = [*sorted(self.folder.glob("*.log")), *sorted(self.run.logs.glob("*.log"))]
        return "\n".join(f"== {log}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)


class Cluster:
    """Some machines with one disk, on which jobs are started in one of the two ways."""

    def __init__(self, nodes: tuple[Node, ...], *, folder: Path, started: list[Popen[bytes]] | None = None) -> None:
        self.nodes, self.folder = nodes, folder
        self.started = [] if started is None else started
        self._starts = 0

    def part(self, count: int) -> Cluster:
        """The first of the machines."""
        folder = self.folder / f"of-{count}"
        folder.mkdir()
        return Cluster(self.nodes[:count], folder=folder, started=self.started)

    def train(self, job: Path, run: RunDirectory, *options: str, **environment: str) -> Started:
        """`shardwise train --nnodes` on each."""
        count = len(self.nodes)
        argv = [sys.executable, "-m", "shardwise.cli.main", "train", str(job), *options, "--nnodes", str(count)]
        ends = [["--node-rank", str(index), "--master", self.nodes[0].name] for index in range(count)]
        return self._start([[*argv, *end] for end in ends], run, environment)

    def torchrun(self, job: Path, run, *options: str, processes=1, exported=False, **environment: str) -> Started:
        """`torchrun --nnodes` on each, as docs/howto/nodes.md has it, or as `export` does."""
        first, count = self.nodes[0].name, len(self.nodes)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(count)]
        torchrun += ["--nproc-per-node", str(processes)]
        train = ["-m", "shardwise.cli.main", "train", str(job), *options]
        places = [["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{first}:29500"]] * count
        if exported:
            place = ["--master-addr", first, "--master-port", "29500", "--node-rank"]
            places = [[*place, str(rank)] for rank in range(count)]
        return self._start([[*torchrun, *place, *train] for place in places], run, environment)

    def _start(self, commands: list[list[str]], run: RunDirectory, environment: Mapping[str, str]) -> Started:
        self._starts += 1
        folder = self.folder / f"start-{self._starts}"
        folder.mkdir()
        started = Started(nodes=self.nodes, folder=folder, run=run)
        usual = {"OMP_NUM_THREADS": "1", "COLUMNS": "400", "SHARDWISE_STALL_SECONDS": f"{STALL_SECONDS:g}"}
        for index, (node, argv) in enumerate(zip(self.nodes, commands, strict=True)):
            shown = {name: value.format(node=node.name) for name, value in environment.items()}
            log = folder / f"{index}.log"
            started.processes.append(node.start(argv, environment={**usual, **shown}, log=log))
        self.started += started.processes
        return started


@pytest.fixture
def four(tmp_path: Path) -> Generator[Cluster]:
    """Four machines."""
    with machines(4, folder=tmp_path) as nodes:
        cluster = Cluster(nodes, folder=tmp_path)
        yield cluster
    for process in cluster.started:
        process.wait(20)


@pytest.fixture
def two(four: Cluster) -> Cluster:
    """Two of them."""
    return four.part(2)


@pytest.fixture
def job_file(make_job: Callable[..., Job], tmp_path: Path) -> Callable[..., tuple[Path, RunDirectory]]:
    """Writes a job; says where, and its run directory."""

    def write(name: str = "run", **other: Any) -> tuple[Path, RunDirectory]:
        job = make_job("deep untied", output_dir=str(tmp_path / name), **other)
        path = tmp_path / f"{name}.yaml"
        path.write_text(json.dumps(job.to_json()))
        return path, RunDirectory(tmp_path / name)

    return write


def wait_for_steps(started: Started, steps: int, *, seconds: float = 120.0) -> None:
    """Until the run has taken so many steps."""
    deadline = time.monotonic() + seconds
    while len(read_metrics(started.run)) < steps:
        assert time.monotonic() < deadline, started.everything()
        assert all(process.poll() is None for process in started.processes), started.everything()
        time.sleep(0.1)


def verdict(case: str, began: float) -> float:
    """Seconds since then; printed, for `make test-nodes` shows them."""
    seconds = time.monotonic() - began
    print(f"\n  {case}: {seconds:.1f} s to the verdict")
    return seconds
