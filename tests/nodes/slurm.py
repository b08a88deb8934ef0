"""A Slurm cluster of the lab's machines: Debian's slurmctld, a slurmd on each, and munge.

Each has two processors, and two GPUs which are files of no device. Jobs of the partition `urgent`
take the place of others, which have a minute's notice.
"""

import os
import secrets
import shutil
import stat
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.nodes.lab import Node

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "sinfo")

#: Of the cluster: `first` is the machine of slurmctld, and `folder` has what it writes.
CONFIG = Path(__file__).with_name("slurm.conf").read_text(encoding="utf-8")

#: Major and minor number of /dev/null.
NULL = (1, 3)
GPUS = 2


def lacking() -> str | None:
    """What is not installed; None where all is."""
    missing = [name for name in PROGRAMS if shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
    return f"Slurm is not installed ({', '.join(missing)})" if missing else None


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """A cluster that takes jobs."""

    first: Node
    folder: Path

    def ask(self, *argv: str) -> str:
        """Runs one of Slurm's programs on the first machine; what it says."""
        log = self.folder / f"asked-{secrets.token_hex(4)}"
        done = self.first.start(argv, environment=self.environment, log=log).wait(60)
        said = log.read_text()
        assert done == 0, f"{argv}: {said}"
        return said

    @property
    def environment(self) -> dict[str, str]:
        """Where the programs find the cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def state(self, job: str) -> dict[str, str]:
        """What scontrol knows of a job."""
        return dict(word.split("=", 1) for word in self.ask("scontrol", "show", "job", job).split() if "=" in word)


@contextmanager
def slurm(nodes: Sequence[Node], *, folder: Path) -> Generator[Slurm]:
    """Starts the daemons; they end with the machines."""
    folder.mkdir()
    folder.chmod(0o755)
    for name in ("state", *(f"spool-{node.name}" for node in nodes)):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    own = [f"--{name}={folder}/munge.{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    munged = subprocess.Popen(
        ["munged", "--foreground", "--force", f"--key-file={key}", *own], stderr=subprocess.DEVNULL
    )
    lines = [f"NodeName={node.name} NodeAddr={node.address} CPUs=2 Gres=gpu:{GPUS} State=UNKNOWN" for node in nodes]
    for index in range(GPUS):
        os.mknod(folder / f"nvidia{index}", 0o666 | stat.S_IFCHR, os.makedev(*NULL))
    gpus = f"AutoDetect=off\nName=gpu Flags=nvidia_gpu_env File={folder}/nvidia[0-{GPUS - 1}]\n"
    (folder / "gres.conf").write_text(gpus)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # which needs none mounted
    (folder / "slurm.conf").write_text(CONFIG.format(first=nodes[0], folder=folder) + "\n".join(lines) + "\n")
    cluster = Slurm(first=nodes[0], folder=folder)
    daemons = [munged]
    try:
        for node, argv in [
            (nodes[0], ["slurmctld", "-D"]),
            *((node, ["slurmd", "-D", "-N", node.name]) for node in nodes),
        ]:
            log = folder / f"{argv[0]}-{node.name}.out"
            daemons.append(node.start(argv, environment=cluster.environment, log=log))
        deadline = time.monotonic() + 60
        while cluster.ask("sinfo", "-h", "-o", "%t %D").split() != ["idle", str(len(nodes))]:
            assert time.monotonic() < deadline, cluster.ask("sinfo", "-N", "-l")
            time.sleep(0.5)
        yield cluster
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for node in nodes:
            node.kill()
        for daemon in daemons:
            daemon.wait(20)
