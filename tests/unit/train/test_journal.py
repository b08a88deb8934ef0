"""Where a worker says that it is."""

from __future__ import annotations

import socket
from pathlib import Path

from shardwise.spec.run import CONSOLE, RunDirectory
from shardwise.train.watching.journal import Journal


def test_a_phase_is_in_a_step_or_comes_after_one(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.logs.mkdir(parents=True)
    journal = Journal(run=run, rank=1)
    journal.enter("training")
    assert journal.at == "training"
    journal.stepping()
    assert journal.at == "training (step 1)"
    journal.stepped(6)
    assert journal.at == "training (after step 6)", "an evaluation or a save is no part of the next step"
    journal.stepping()
    assert journal.at == "training (step 7)"
    journal.warn("checkpoint-6 was not saved: no space is left")
    assert journal.at == "training (step 7)", "what is only noted is no phase"
    journal.enter("saving")
    assert journal.at == "saving (after step 6)"


def test_where_it_is_before_the_first_step(tmp_path: Path) -> None:
    journal = Journal(run=RunDirectory(tmp_path), rank=1)
    journal.enter("types")
    journal.turn_to("reading checkpoints")
    assert journal.before_first_step == "reading checkpoints, before the first step"
    journal.enter("training")
    assert journal.before_first_step == "in its first step"
    journal.enter("saving")
    assert journal.before_first_step == "", "a start behind the last step"
    journal.enter("training")
    journal.stepped(1)
    assert journal.before_first_step == ""


def test_the_first_rank_of_a_node_says_once_on_its_terminal_why_it_fails(tmp_path: Path, monkeypatch) -> None:
    run = RunDirectory(tmp_path)
    run.logs.mkdir(parents=True)
    terminal = tmp_path / "terminal"
    with terminal.open("wb") as file:
        monkeypatch.setenv(CONSOLE, str(file.fileno()))
        journal = Journal(run=run, rank=8)
        journal.failed(OSError("the disk is full"))
        journal.write_failure(OSError("again"), rank=8, phase="saving")
    said = f"error: rank 8 on {socket.gethostname()}: the disk is full; rank 0 says what came first\n"
    assert terminal.read_text() == said
