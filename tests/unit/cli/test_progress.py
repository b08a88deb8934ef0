import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from shardwise.api import Notice, Phase, Planned, StepMetrics
from shardwise.cli.console import make_console
from shardwise.cli.progress import ProgressDisplay, State, panel
from shardwise.spec.run import RunDirectory
from tests.unit.cli.plans import plan

PLANNED = Planned(plan=plan(), run=RunDirectory(Path("runs/x")))


def step(at: int, **figures: float) -> StepMetrics:
    return StepMetrics(step=at, loss=5.0 - at / 10, grad_norm=1.25, learning_rate=2e-4, step_seconds=2.0, **figures)


def console(*, terminal: bool = False) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=100, force_terminal=terminal, highlight=False, markup=False), file


def test_without_a_terminal_a_line_for_each_logging_step_and_the_edges() -> None:
    made, file = console()
    with ProgressDisplay(made) as progress:
        progress.show(PLANNED)
        progress.show(Phase(name="preparing data", total_steps=None, detail={}))
        progress.show(PLANNED)
        progress.show(Phase(name="training", total_steps=25, detail={"first_step": 1}))
        for number in range(1, 26):
            progress.show(step(number))
    assert file.getvalue().splitlines() == [
        "fsdp (dp_shard=4), micro-batch 4 x 2 accumulation, recompute none, precision mixed",
        "  - it is the fastest of 2 that fit",
        "  - forecast for rank 0: 30.0 GiB of 48.0 GiB",
        "  - forecast for ranks 1-3: 15.0 GiB of 48.0 GiB",
        "  - run directory: runs/x",
        "preparing data",
        "training, total steps 25, first step 1",
        "step 1/25  loss 4.9000  grad norm 1.25  lr 2.00e-04  left 48 s",
        "step 10/25  loss 4.0000  grad norm 1.25  lr 2.00e-04  left 30 s",
        "step 20/25  loss 3.0000  grad norm 1.25  lr 2.00e-04  left 10 s",
        "step 25/25  loss 2.5000  grad norm 1.25  lr 2.00e-04  left 0.00 s",
    ]


def test_a_reader_that_goes_away_does_not_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str, /) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("os.dup2", lambda *_: None)  # this test's own output is still read
    with ProgressDisplay(make_console(Gone())) as progress:
        progress.show(PLANNED)
        progress.show(step(10))


def test_the_panel_shows_how_far_it_is_and_how_to_end_at_once_when_it_is_stopping() -> None:
    made, file = console(terminal=True)
    with ProgressDisplay(made) as progress:
        progress.show(PLANNED)
        progress.show(Phase(name="training", total_steps=4, detail={}))
        progress.show(step(1, tokens_per_second=12345.0))
    assert all(words in file.getvalue() for words in ("training", "12.3k", "25 %"))
    state = State()
    made.print(panel(state))
    state.take(Phase(name="stopping", total_steps=None, detail={"signal": "SIGINT"}))
    made.print(panel(state))
    assert "no step yet" in file.getvalue() and "ask again to end at once" in file.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_notice_is_said_in_one_line_and_once_and_a_skipped_step_with_its_scale(terminal: bool) -> None:
    made, file = console(terminal=terminal)
    with ProgressDisplay(made) as progress:
        progress.show(Phase(name="training", total_steps=5, detail={}))
        progress.show(Notice(text="wandb cannot be opened and is not reported to: no login"))
        progress.show(StepMetrics(step=1, loss=5.0, loss_scale=65536.0, skipped=True))
    assert file.getvalue().count("warning: wandb cannot be opened and is not reported to: no login") == 1
    assert "skipped at loss scale 65536" in re.sub(r"\x1b\[\d*m", "", file.getvalue())
