from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.data.order import epoch_order, pack, permutation, samples_per_epoch


def order(sizes: list[int], weights: list[float], *, epoch: int = 0, seed: int = 1, shuffle: bool = True) -> list[int]:
    sources = np.repeat(np.arange(len(sizes), dtype=np.uint16), sizes)
    return epoch_order(sources, weights=weights, seed=seed, epoch=epoch, shuffle=shuffle).tolist()


def test_the_order_is_pinned_so_that_a_resumed_run_elsewhere_sees_the_same() -> None:
    assert permutation(8, 42, 1, 0).tolist() == [7, 0, 1, 6, 5, 4, 3, 2]


def test_each_epoch_and_seed_shows_every_sample_once_in_an_order_of_its_own() -> None:
    epochs = [order([101], [1.0], epoch=epoch, seed=seed) for epoch, seed in ((0, 1), (1, 1), (0, 2))]
    assert all(sorted(epoch) == list(range(101)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert order([3, 2], [1.0, 1.0], shuffle=False) == [0, 1, 2, 3, 4]


def test_a_weight_says_how_often_rows_are_shown() -> None:
    assert Counter(order([3, 2], [2.0, 1.0])) == {0: 2, 1: 2, 2: 2, 3: 1, 4: 1}
    assert len(order([10, 10], [1.0, 0.001])) == 11
    assert sorted(order([3, 0], [1.0, 0.5])) == [0, 1, 2]


@pytest.mark.parametrize("shuffle", [True, False])
def test_half_a_weight_shows_half_of_the_rows_and_then_the_other_half(shuffle: bool) -> None:
    first, second = (order([10], [0.5], epoch=epoch, shuffle=shuffle) for epoch in (0, 1))
    assert len(first) == len(second) == 5
    assert sorted(first + second) == list(range(10))


def test_a_fraction_shows_none_twice_in_an_epoch_and_all_equally_often_in_the_long_run() -> None:
    seen = Counter[int]()
    for epoch in range(10):
        shown = order([10], [0.7], epoch=epoch)
        assert len(set(shown)) == len(shown) == 7
        seen.update(shown)
    assert set(seen.values()) == {7}


@pytest.mark.parametrize("weights", [[1.0, 1.0], [2.5, 0.3], [0.001, 3.0]])
def test_an_epoch_is_as_long_as_it_is_said_to_be(weights: list[float]) -> None:
    for epoch in range(4):
        assert len(order([7, 5], weights, epoch=epoch)) == samples_per_epoch([7, 5], weights)


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=200), spare=st.integers(0, 60))
@settings(max_examples=200)
def test_every_document_stands_once_and_no_pack_is_overfull(lengths: list[int], spare: int) -> None:
    capacity = max(lengths) + spare
    sizes = np.array(lengths, np.int32)
    offsets, documents = pack(sizes, capacity=capacity)
    assert sorted(documents.tolist()) == list(range(len(lengths)))
    packs = [documents[start:stop] for start, stop in pairwise(offsets)]
    assert all(1 <= sizes[members].sum() <= capacity for members in packs)
    assert all((np.diff(members) > 0).all() for members in packs)
    assert [members[0] for members in packs] == sorted(members[0] for members in packs)


def test_packing_a_hundred_thousand_rows_is_dense() -> None:
    lengths = np.random.default_rng(0).integers(1, 2000, 100_000).astype(np.int32)
    offsets, _ = pack(lengths, capacity=4096)
    assert lengths.sum() / ((len(offsets) - 1) * 4096) > 0.999
