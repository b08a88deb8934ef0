"""Seconds of the pieces of a step, each against the one beside it that differs in a single thing."""

from __future__ import annotations

import pytest

from shardwise.plan.time.links import group_of
from shardwise.plan.time.pieces import pieces_of
from shardwise.spec.layout.axes import Layout
from tests.unit.plan.asking import execution, job, shape, work


def test_logits_of_chunks_are_gathered_in_forward_and_again_in_backward() -> None:
    """The head of a chunk is computed again, and what hangs on it gathers again; whole logits are kept."""
    asked, layout = job(data={"max_length": 4096}), Layout(tp=4)
    works = {
        loss: work(asked, shape(vocab_size=32000), execution(layout, loss=loss), "4x L40S")
        for loss in ("full", "chunked")
    }
    talking = {loss: pieces_of(made).loss.talking for loss, made in works.items()}
    group = group_of(works["full"].cluster, layout, "tp")
    assert talking["full"] == pytest.approx(group.gather(4096 * 32000 * 2))
    assert talking["chunked"] == pytest.approx(4 * 2 * group.gather(1024 * 32000 * 2))
    short = work(job(data={"max_length": 1024}), shape(vocab_size=32000), execution(layout, loss="chunked"), "4x L40S")
    assert pieces_of(short).loss.talking == pytest.approx(group.gather(1024 * 32000 * 2))


@pytest.mark.parametrize(("recompute", "passes"), [("none", 1.0), ("selective", 1.75), ("full", 1.75)])
def test_slices_of_blocks_that_are_computed_again_talk_again_but_for_their_last_sum(
    recompute: str, passes: float
) -> None:
    """Selective recompute keeps products and attention, and makes anew what is between: messages too."""
    one = execution(Layout(tp=4), gradient_checkpointing=recompute)
    made = pieces_of(work(job(data={"max_length": 4096}), shape(), one, "4x L40S"))
    assert made.backward.talking == pytest.approx(passes * made.forward.talking)
