"""Where a worker says that it is."""

from __future__ import annotations

from pathlib import Path

from shardwise.spec.run import RunDirectory
from shardwise.train.journal import Journal


def test_a_phase_is_in_a_step_or_comes_after_one(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.logs.mkdir(parents=True)
    journal = Journal(run=run, rank=1)
    journal.enter("training")
    assert journal.at == "training"
    journal.stepped(6)
    assert journal.at == "training (step 7)"
    journal.warn("checkpoint-6 was not saved: no space is left")
    assert journal.at == "training (step 7)", "what is only noted is no phase"
    journal.enter("saving")
    assert journal.at == "saving (after step 6)"
