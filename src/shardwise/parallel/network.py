"""The network interface between machines, and the meeting of all ranks at MASTER_ADDR.

Gloo takes the one that this machine's own name leads to, and on Debian's and Ubuntu's images that
is loopback. With several machines it is told to take the one of the route to MASTER_ADDR instead.
"""

import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from ipaddress import ip_address

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from shardwise.errors import InputError
from shardwise.spec.begin import MEETING_SECONDS, SAID_AFTER_SECONDS, left_over

#: Where the user names the interface; NCCL finds one itself.
VARIABLE = "GLOO_SOCKET_IFNAME"
#: NCCL's own: beginnings of names, or after `=` whole ones, and after `^` what is left out.
OF_NCCL = "NCCL_SOCKET_IFNAME"

#: An address for documentation (RFC 5737), on no network: the way to it is the default route.
_ANYWHERE = "192.0.2.1"

Interfaces = Mapping[str, tuple[str, ...]]
"""Addresses by the name of an interface that is up."""


def check_named(*, gpus: bool) -> None:
    """Raises InputError: a variable names no interface that is here. `gpus`: NCCL is used too."""
    for variable in (VARIABLE, OF_NCCL) if gpus else (VARIABLE,):
        value, nccl = os.environ.get(variable, ""), variable == OF_NCCL
        here = _interfaces() if value and value[0] != "^" else {}
        names, begins = value.removeprefix("=").split(","), nccl and value[:1] != "="
        found = [any(one.startswith(name) if begins else one == name for one in here) for name in names]
        if here and not (any(found) if nccl else all(found)):
            raise InputError(
                f"{variable} is {value}, and {socket.gethostname()} has {', '.join(here)}; set it to one of these, or "
                f"unset it (env -u {variable})"
            )


def met(open_store: Callable[[timedelta], Store], *, rank: int, size: int, timeout: timedelta) -> Store:
    """The store at MASTER_ADDR, once all ranks are there; `open_store` is given how long it may
    wait. Says on stderr, when it takes long, who is waited for. Raises InputError."""
    host, port = os.environ["MASTER_ADDR"], os.environ.get("MASTER_PORT", "")
    whom = "rank 0" if rank else "the other rank" if size == 2 else f"the other {size - 1} ranks"
    waits = f"rank {rank} of {size} on {socket.gethostname()} waits for {whom} at {host}:{port}"
    remedy, patience = left_over(), min(timeout, timedelta(seconds=MEETING_SECONDS)) if is_here(host) else timeout
    late = threading.Timer(SAID_AFTER_SECONDS, lambda: print(f"{waits}; {remedy}", file=sys.stderr, flush=True))
    late.daemon = True
    late.start()
    try:
        store = open_store(patience)
    except (dist.DistError, OSError) as error:
        if "EADDRINUSE" in str(error) or "in use" in str(error):
            taken = f"port {port} of {host} is in use by another program; set MASTER_PORT to a free one"
            raise InputError(f"rank {rank} of {size} cannot listen at MASTER_ADDR: {taken}") from None
        raise InputError(f"{waits}, which nobody answered in {patience.seconds} s; {remedy}") from None
    finally:
        late.cancel()
    store.set_timeout(timeout)
    return store


def is_here(host: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        there = str(socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0][4][0])
    except OSError:
        return False
    return _is_loopback(there) or _own_address(host) == there


def choose_interface(master: str) -> None:
    """Sets VARIABLE, unless the user has, to the interface of the route to MASTER_ADDR, and logs
    it. Raises InputError: there is no such route, or more than one interface may be meant."""
    if os.environ.get(VARIABLE):
        return
    address = _own_address(master)
    if address is None:
        raise InputError(f"MASTER_ADDR is {master}, which this machine ({socket.gethostname()}) has no route to")
    if _is_loopback(address):  # this machine is the master, and its own name leads it to loopback
        address = _own_address(_ANYWHERE)
    name = interface_of(address, interfaces=_interfaces(), master=master)
    if name is not None:
        os.environ[VARIABLE] = name
        print(f"ranks talk over {name}, the interface of the route to {master}; {VARIABLE} sets another", flush=True)


def interface_of(address: str | None, *, interfaces: Interfaces, master: str) -> str | None:
    """The interface with an address; without one, the only one to other machines, None if none."""
    outside = [name for name, own in interfaces.items() if not any(map(_is_loopback, own))]
    having = [name for name in outside if address is None or address in interfaces[name]]
    if len(having) == 1 or not outside:
        return next(iter(having), None)
    raise InputError(
        f"MASTER_ADDR is {master}, and it cannot be told which interface of {socket.gethostname()} leads to the other "
        f"machines; set {VARIABLE} to one of {', '.join(outside)}"
    )


def _is_loopback(address: str) -> bool:
    return ip_address(address).is_loopback


def _own_address(host: str) -> str | None:
    """What this machine calls itself to a host; None without a route to it. Nothing is sent."""
    try:
        family, kind, protocol, _, there = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(there)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _interfaces() -> Interfaces:
    import psutil

    found: dict[str, tuple[str, ...]] = {}
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    for name, every in psutil.net_if_addrs().items():
        own = [one.address.partition("%")[0] for one in every if one.family in (socket.AF_INET, socket.AF_INET6)]
        if own and name in up:
            found[name] = tuple(own)
    return found
