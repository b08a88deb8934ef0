"""Machines on one box: a network namespace each, with names and /etc/hosts of its own and a cable
to one switch. As on Debian's images, a machine finds its own name at 127.0.1.1."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

#: `sh -c SET_UP sh HOSTNAME HOSTS HIDDEN PROGRAM ...`. HIDDEN: a folder of the machine alone.
SET_UP = """
mount --make-rprivate / && hostname "$1" && mount --bind "$2" /etc/hosts || exit 9
test -z "$3" || mount -t tmpfs none "$3" || exit 9
shift 3 && exec "$@"
"""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine: its network's name, the switch's, and where its cable ends there."""

    name: str
    address: str
    namespace: str
    hub: str
    port: str
    hosts: Path
    hidden: list[Path] = field(default_factory=list[Path])

    def start(self, argv: Sequence[str], *, environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
        """Starts a program on this machine; what it says goes to a file."""
        inside = ["unshare", "--uts", "--mount", "sh", "-c", SET_UP, "sh", self.name, str(self.hosts)]
        inside.append(str(self.hidden[0]) if self.hidden else "")
        with log.open("wb") as file:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *inside, *argv],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def hide(self, folder: Path) -> None:
        """From here on this machine has a disk of its own in place of a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.hidden.append(folder)

    def pids(self) -> list[int]:
        """Of all processes that run there."""
        return [int(pid) for pid in _ip("netns", "pids", self.namespace).split()]

    def kill(self) -> None:
        """Ends all of its processes at once; the kernel says so to those they talk to."""
        while pids := self.pids():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def cut(self) -> None:
        """Pulls its cable out of the switch."""
        _ip("-n", self.hub, "link", "set", self.port, "down")

    def mend(self) -> None:
        """Puts the cable back."""
        _ip("-n", self.hub, "link", "set", self.port, "up")

    def slow(self, *, rate: str, delay: str) -> str:
        """Slows what it sends; how. Without `netem`, `tbf` drops what waits too long."""
        device = ["tc", "-n", self.namespace, "qdisc", "add", "dev", "eth0", "root"]
        netem = ["netem", "delay", delay, "rate", rate]
        if subprocess.run([*device, *netem], check=False, capture_output=True).returncode == 0:
            return " ".join(netem)
        tbf = ["tbf", "rate", rate, "burst", "32kb", "latency", "400ms"]
        subprocess.run([*device, *tbf], check=True)
        return " ".join(tbf)

    def sent_bytes(self, device: str) -> int:
        """By one of its network interfaces."""
        (found,) = json.loads(_ip("-n", self.namespace, "-s", "-j", "link", "show", device))
        return int(found["stats64"]["tx"]["bytes"])


def lacking() -> str | None:
    """Why there can be no such machines here; None where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [program for program in ("ip", "tc", "unshare", "hostname") if shutil.which(program) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    try:
        with machines(1, folder=Path("/tmp")) as (node,):
            done = node.start(["true"], environment={}, log=Path(os.devnull)).wait(20)
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"
    return None if done == 0 else "no namespaces of hostnames and mounts here"


@contextmanager
def machines(count: int, *, folder: Path) -> Generator[tuple[Node, ...]]:
    """Machines `n0`, `n1`, ... with one network, gone afterwards with all that runs there."""
    mark = f"sw{os.getpid()}"
    hub = f"{mark}hub"
    nodes = tuple(
        Node(
            name=f"n{index}",
            address=f"10.77.0.{index + 1}",
            namespace=f"{mark}n{index}",
            hub=hub,
            port=f"port{index}",
            hosts=folder / f"{mark}-hosts-{index}",
        )
        for index in range(count)
    )
    try:
        _ip("netns", "add", hub)
        _add_switch(hub, "switch")
        for node in nodes:
            _add(node, nodes)
        yield nodes
    finally:
        for node in nodes:
            with suppress(subprocess.CalledProcessError):
                node.kill()
                _ip("netns", "del", node.namespace)
            node.hosts.unlink(missing_ok=True)
        with suppress(subprocess.CalledProcessError):
            _ip("netns", "del", hub)


def add_network(nodes: Sequence[Node]) -> None:
    """A second one, with a switch and a cable to each machine, `eth1`."""
    _add_switch(nodes[0].hub, "switch1")
    for node in nodes:
        address = node.address.replace("10.77", "10.78")
        _plug(node, "eth1", address=address, port=f"{node.port}-1", switch="switch1")


def _add(node: Node, nodes: Sequence[Node]) -> None:
    others = "".join(f"{other.address} {other.name}\n" for other in nodes if other != node)
    node.hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 {node.name}\n{others}")
    _ip("netns", "add", node.namespace)
    _ip("-n", node.namespace, "link", "set", "lo", "up")
    _plug(node, "eth0", address=node.address, port=node.port, switch="switch")


def _add_switch(hub: str, name: str) -> None:
    _ip("-n", hub, "link", "add", name, "type", "bridge")
    _ip("-n", hub, "link", "set", name, "up")


def _plug(node: Node, device: str, *, address: str, port: str, switch: str) -> None:
    """A cable between a machine's device and a switch's port."""
    _ip(*("-n", node.namespace, "link", "add", device, "type", "veth"), *("peer", "name", port, "netns", node.hub))
    _ip("-n", node.hub, "link", "set", port, "master", switch, "up")
    _ip("-n", node.namespace, "addr", "add", f"{address}/24", "dev", device)
    _ip("-n", node.namespace, "link", "set", device, "up")


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
