"""Which network interface ranks of several machines talk over."""

from __future__ import annotations

import socket

import pytest

from shardwise.errors import InputError
from shardwise.parallel.network import VARIABLE, choose_interface, interface_of

TWO = {"lo": ("127.0.0.1", "::1"), "eth0": ("10.1.0.5", "fe80::1"), "ib0": ("10.2.0.5",)}
ONE = {"lo": ("127.0.0.1",), "eth0": ("10.1.0.5",)}


def test_the_interface_is_the_one_with_the_address_of_the_route_to_the_master() -> None:
    assert interface_of("10.2.0.5", interfaces=TWO, master="n0") == "ib0"
    assert interface_of("fe80::1", interfaces=TWO, master="n0") == "eth0"


def test_without_a_route_out_the_only_interface_is_taken_and_none_where_there_is_only_loopback() -> None:
    assert interface_of(None, interfaces=ONE, master="n0") == "eth0"
    assert interface_of(None, interfaces={"lo": ("127.0.0.1",)}, master="n0") is None


def test_where_two_interfaces_may_be_meant_the_user_is_asked_to_name_one() -> None:
    with pytest.raises(InputError) as caught:
        interface_of(None, interfaces=TWO, master="n0")
    assert str(caught.value) == (
        f"MASTER_ADDR is n0, and it cannot be told which interface of {socket.gethostname()} leads to the other "
        "machines; set GLOO_SOCKET_IFNAME to one of eth0, ib0"
    )


def test_what_the_user_has_set_stays(monkeypatch, capsys) -> None:
    monkeypatch.setenv(VARIABLE, "ib7")
    choose_interface("127.0.0.1")
    assert capsys.readouterr().out == ""


def test_a_master_that_cannot_be_reached_is_said(monkeypatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(InputError, match=r"MASTER_ADDR is nowhere.invalid, which this machine .* has no route to"):
        choose_interface("nowhere.invalid")
