"""The network interface over which machines reach each other.

Gloo takes the one that this machine's own name leads to, and on Debian's and Ubuntu's images that is loopback. With
several machines it is told to take the one of the route to MASTER_ADDR instead.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from ipaddress import ip_address

from shardwise.errors import InputError

#: Where the user names the interface; NCCL finds one itself.
VARIABLE = "GLOO_SOCKET_IFNAME"

#: An address for documentation (RFC 5737), on no network: the way to it is the default route.
_ANYWHERE = "192.0.2.1"

Interfaces = Mapping[str, tuple[str, ...]]


def choose_interface(master: str) -> None:
    """Sets VARIABLE, unless the user has, to the interface of the route to MASTER_ADDR, and says so in the rank's log.
    Raises InputError: there is no such route, or more than one interface may be meant."""
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
    """The interface with an address; without one the only interface to other machines, None where there is none.

    Args:
        interfaces: addresses by the name of the interface, of those that are up.
        master: for the message.
    """
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

    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    internet = (socket.AF_INET, socket.AF_INET6)
    return {
        name: tuple(one.address.partition("%")[0] for one in addresses if one.family in internet)
        for name, addresses in psutil.net_if_addrs().items()
        if name in up and any(one.family in internet for one in addresses)
    }
