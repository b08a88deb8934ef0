"""What every test can rely on, whatever started the suite."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings

from shardwise.catalog.calibration import calibration_file
from tests.pairwise import mark_pairwise
from tests.warm.server import warm_starts

# Read when a conftest below imports torch. More threads wait for cores that other tests use.
os.environ["OMP_NUM_THREADS"] = "1"
#: The variable that names what is put in the interpreter's place.
WARM_PYTHON = "SHARDWISE_TESTS_PYTHON"

# How long an example takes says more of what else the machine does than of what is tested.
settings.register_profile("shardwise", deadline=None)
settings.load_profile("shardwise")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite tests/golden with what the program says now; the difference is for a person to review",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--update-golden") and os.environ.get("CI"):
        raise pytest.UsageError(
            "--update-golden: CI compares golden files and has nobody to review new ones; run it elsewhere"
        )
    if not hasattr(config, "workerinput"):  # one server for all of xdist's workers, which inherit the variable
        warm = ExitStack()
        config.add_cleanup(warm.close)
        folder = warm.enter_context(tempfile.TemporaryDirectory())
        os.environ[WARM_PYTHON] = warm.enter_context(warm_starts(Path(folder)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs behind the hooks of the folders below, which say what is slow."""
    mark_pairwise(items)


@pytest.fixture(scope="session", autouse=True)
def _warm_starts() -> Iterator[None]:
    """What tests start of the program is forked off processes that have torch imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", os.environ[WARM_PYTHON])
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prepared data, and measured rates of this machine, stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHARDWISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _no_earlier_runs() -> None:
    """What a test's runs have noted is not said in the plans of the next test."""
    calibration_file().unlink(missing_ok=True)


@pytest.fixture(scope="session", autouse=True)
def _signals_reach_the_suite() -> None:
    """Background jobs and nohup ignore signals, and children inherit that; tests send them."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
