"""Which rank is named when nothing moves, the one the others wait for, and a worker's word."""

import json
import socket
from dataclasses import asdict, replace

import pytest

from shardwise.spec.job.strict import from_plain
from shardwise.spec.run import CONSOLE, RunDirectory
from shardwise.train.watching.journal import Journal
from shardwise.train.watching.stall import Standing, judge

WORLD, SLICES = (0, 1, 2, 3), {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}


def at(rank: int, place: str = "reduce (optim.py:80)", *, waits: bool = True, world=7, slices=4) -> Standing:
    groups = ((WORLD, world), (SLICES[rank], slices))
    return Standing(rank=rank, phase="training (step 5)", place=place, waits=waits, groups=groups)


READING, SENT, STUCK = "read (data.py:61)", "all_reduce 41 of ranks 0-1", {"waits": False}
GATHER, TAKE, PULSE = "gather (shard.py:9)", "_take (pipeline.py:210)", "pulse (metrics.py:126)"
#: (What, how many ranks there are, who is named) -> what each rank is in, and what is said.
JUDGED = {
    ("one that has not begun what the others have", 4, 2): (
        [at(0), at(1), at(2, READING, **STUCK, world=6), at(3)],
        f"rank 2 is in {READING}; ranks 0-1, 3 wait in reduce (optim.py:80). The stack of each rank is in its log",
    ),
    ("who holds up rank 2, which has not come to what ranks 0 and 1 are in", 4, 3): (
        [at(0), at(1), at(2, GATHER, world=6), at(3, READING, **STUCK, world=6, slices=3)],
        "rank 3 is in read (data.py:61); ranks 0-1 wait in reduce (optim.py:80); rank 2 waits in gather",
    ),
    ("who works, of two that have begun as little", 4, 3): (
        [at(0), at(1), at(2, GATHER, world=6, slices=3), at(3, READING, **STUCK, world=6, slices=3)],
        "rank 3 is in read (data.py:61); ranks 0-1 wait in reduce (optim.py:80); rank 2 waits in gather",
    ),
    ("ranks that do not answer", 4, 1): (
        [at(0), at(2)],
        "ranks 1, 3 do not answer, their processes are stopped or hang outside Python; ranks 0, 2 wait",
    ),
    ("what has not ended on the device, ahead of which the host runs", 2, None): (
        [replace(at(rank, "read (optim.py:90)"), unfinished=SENT) for rank in (0, 1)],
        f"ranks wait for each other: ranks 0-1 wait in read (optim.py:90), where {SENT} has not ended",
    ),
    ("who does not wait, where stages count alike", 4, 0): (
        *([at(0, READING, **STUCK), *(at(rank, TAKE) for rank in (1, 2, 3))], "rank 0 is in read"),
    ),
    ("all that wait for each other", 2, None): (
        [at(0, world=8, slices=3), at(1, PULSE, world=7, slices=4)],
        "ranks wait for each other: rank 0 waits in reduce (optim.py:80); rank 1 waits in pulse",
    ),
    ("all at work", 2, None): ([at(0, READING, **STUCK), at(1, READING, **STUCK)], f"ranks 0-1 are in {READING}. "),
}


@pytest.mark.parametrize(("who", "count", "culprit"), JUDGED)
def test_who_holds_up_the_others_is_named(who, count, culprit) -> None:
    standings, said = JUDGED[who, count, culprit]
    verdict = judge(standings, ranks=range(count), seconds=301)
    assert (verdict.culprit == culprit or culprit is None) and verdict.phase == "training (step 5)"
    assert verdict.sentence.startswith(f"nothing has moved for 5 min 01 s: {said}")


@pytest.mark.parametrize("waits", [False, True])
def test_what_a_request_to_stop_cuts_short_before_the_first_step_is_slow_and_not_stuck(*, waits: bool) -> None:
    standings = [at(0, READING, waits=waits), at(1, READING, waits=waits)]
    sentence = judge(standings, ranks=range(2), seconds=12, at="loading, before the first step").sentence
    verb = "wait" if waits else "are"
    assert sentence.startswith(f"it was still loading, before the first step: ranks 0-1 {verb} in read (data.py:61). ")


@pytest.mark.parametrize("waits", [False, True])
def test_a_rank_by_itself_says_where_it_is(*, waits: bool) -> None:
    alone = Standing(rank=3, phase="starting", place="join_world (mesh.py:100)", waits=waits)
    verdict = judge([alone], ranks=range(3, 4), seconds=3000)
    assert verdict.culprit == 3
    assert verdict.sentence.startswith("nothing has moved for 50 min 00 s: rank 3 ")


def test_many_places_are_counted_and_not_listed() -> None:
    standings = [Standing(rank=rank, phase="p", place=f"f (a.py:{rank})", waits=True) for rank in range(9)]
    assert "; 5 other places are in the logs. " in judge(standings, ranks=range(9), seconds=60).sentence


def test_a_standing_comes_back_from_its_file() -> None:
    assert from_plain(Standing, json.loads(json.dumps(asdict(at(2))))) == at(2)


def test_a_phase_is_in_a_step_or_comes_after_one(tmp_path) -> None:
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


def test_where_it_is_before_the_first_step(tmp_path) -> None:
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


def test_the_first_rank_of_a_node_says_once_on_its_terminal_why_it_fails(tmp_path, monkeypatch) -> None:
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
