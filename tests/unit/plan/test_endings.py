"""What follows the last backward: who does what, and for how long."""

from __future__ import annotations

import pytest

from shardwise.plan.time.endings import endings_of
from shardwise.plan.time.links import Group, group_of
from shardwise.spec.layout.axes import Layout
from tests.unit.plan.asking import execution, job, shape, work

TIED = shape(num_hidden_layers=8, tie_word_embeddings=True)
EMBEDDING_BYTES = 4 * 2000 * 128
NAME = "add tied gradients"


def added(layout: Layout, model=TIED, hardware: str = "8x L40S", method: str = "full") -> list[float]:
    """Seconds in which each pipeline rank adds up its tied weight's gradient with that at the other end."""
    made = work(job(method=method), model, execution(layout), hardware)
    return [dict(ending.pieces)[NAME].seconds if NAME in dict(ending.pieces) else 0.0 for ending in endings_of(made)]


def test_the_ends_of_a_pipeline_add_up_the_gradients_of_a_tied_weight() -> None:
    layout = Layout(pp=4)
    made = work(job(method="full"), TIED, execution(layout), "8x L40S")
    seconds = Group(size=2, link=group_of(made.cluster, layout, "pp").link).all_reduce(EMBEDDING_BYTES)
    assert added(layout) == pytest.approx([seconds, 0.0, 0.0, seconds])


@pytest.mark.parametrize("keys", [{"tp": 2}, {"dp_shard": 2}])
def test_each_adds_up_the_part_that_it_holds(keys: dict[str, int]) -> None:
    small, large = (shape(num_hidden_layers=8, tie_word_embeddings=True, vocab_size=size) for size in (8000, 16000))
    assert added(Layout(pp=2, **keys), large) == pytest.approx(added(Layout(pp=2), small))
    assert added(Layout(pp=2), large)[0] > 1.5 * added(Layout(pp=2), small)[0]


def test_copies_of_data_parallel_are_whole() -> None:
    zero1 = Layout(pp=2, dp_shard=2, zero_stage=1, reshard_after_forward=False)
    assert added(zero1) == pytest.approx(added(Layout(pp=2)))


def test_over_nodes_the_ends_talk_over_the_network() -> None:
    model = shape(num_hidden_layers=8, tie_word_embeddings=True, vocab_size=128_000)
    near, far = (added(Layout(pp=2), model, name)[0] for name in ("2x H100-SXM", "2 x 1x H100-SXM"))
    assert far > 4 * near


def test_nothing_is_added_where_nothing_is_tied_or_trained_or_apart() -> None:
    assert added(Layout(pp=2), model=shape(num_hidden_layers=8)) == [0.0, 0.0]
    assert added(Layout(pp=2), method="lora") == [0.0, 0.0]
    assert added(Layout(dp_shard=2)) == [0.0]
