"""What `verify` shows of weights: nothing that differs is called exact."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from shardwise.cli.verify import print_parity
from shardwise.report.parity import Agreement, Parity

SAME: dict[str, Any] = {"num_tensors": 3, "relative": 0.0, "absolute": 0.0}
SAME |= dict.fromkeys(("worst", "excused", "first", "reason"))
EXCUSED = {"name": "model.norm.weight", "relative": 9.3e-5, "absolute": 2e-6}


def _shown(weights: dict[str, Any] | None) -> str:
    figures: dict[str, Any] = {"num_steps": 8, "loss": 0.0, "grad_norm": 1e-7, "weights": weights}
    row = Agreement(layout="tp-2", processes=2, run="run", **figures, first=None)
    parity = Parity(reference="one", num_steps=8, tolerance=1e-5, changes=(), layouts=(row,), unable=())
    console = Console(width=200, record=True, file=None)
    with console.capture() as capture:
        print_parity(parity, console)
    return capture.get()


@pytest.mark.parametrize(
    ("weights", "cell", "said"),
    [
        (SAME, "exact", False),
        ({**SAME, "relative": 7.8e-6, "worst": "a"}, "7.8e-06", False),
        ({**SAME, "excused": EXCUSED}, "9.3e-05", True),
        ({**SAME, "relative": 7.8e-6, "worst": "a", "excused": EXCUSED}, "7.8e-06", True),
        (None, "-", False),
    ],
)
def test_weights_are_shown_as_they_are(weights: dict[str, Any] | None, cell: str, said: bool) -> None:
    shown = _shown(weights)
    row = next(line for line in shown.splitlines() if line.startswith("tp-2 "))
    assert row.split() == ["tp-2", "2", "8", "exact", "1.0e-07", cell, "none"]
    sentence = (
        "tp-2: model.norm.weight differs by 9.3e-05 relative to its norm, which is less than a tolerance of all that "
        "sgd's steps changed together"
    )
    assert (sentence in shown) is said
