from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.data.pack import pack


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


def test_the_tightest_room_is_taken() -> None:
    # decreasing: 6 | 5 | 4 goes to 6 (room 4, not 5) | 3 goes to 5
    offsets, documents = pack(np.array([5, 6, 4, 3], np.int32), capacity=10)
    packs = [documents[start:stop].tolist() for start, stop in pairwise(offsets)]
    assert packs == [[0, 3], [1, 2]]


def test_packing_a_hundred_thousand_rows_is_dense() -> None:
    lengths = np.random.default_rng(0).integers(1, 2000, 100_000).astype(np.int32)
    offsets, _ = pack(lengths, capacity=4096)
    assert lengths.sum() / ((len(offsets) - 1) * 4096) > 0.999
