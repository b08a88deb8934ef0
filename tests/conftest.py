"""What every test can rely on, whatever started the suite."""

from __future__ import annotations

import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def _signals_reach_the_suite() -> None:
    """Background jobs and nohup ignore signals, and children inherit that; tests send them and must see them arrive."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
