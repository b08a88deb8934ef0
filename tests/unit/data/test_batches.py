"""The order of samples, and batches that are the same for any number of ranks."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import find_packed_sequence_indices

from shardwise.data.micro_batches import FILLER, Batcher, Batches, EvalBatches, GlobalBatch
from shardwise.data.order import epoch_order, pack, permutation, samples_per_epoch
from shardwise.data.store import IGNORED, PreparedData
from tests.unit.data.helpers import store

PADDING = 7


def batcher(data: PreparedData, *, rank: int, ranks: int, micro_batch_size: int = 2, **lengths: Any) -> Batcher:
    places = {"data_rank": rank, "data_world_size": ranks}
    return Batcher(data=data, micro_batch_size=micro_batch_size, padding_id=PADDING, **places, **lengths)


def batches(data: PreparedData, *, rank: int = 0, ranks: int = 1, **changes: Any) -> Batches:
    batched = {key: changes.pop(key) for key in ("micro_batch_size", "length_multiple", "joins") if key in changes}
    settings = {"global_batch_size": 6, "seed": 3, "shuffle": True, "num_epochs": 1.0, "max_steps": None, **changes}
    return Batches(batcher(data, rank=rank, ranks=ranks, **batched), **settings)


def seen(batch: GlobalBatch) -> list[int]:
    return [sample for micro in batch.micro_batches for sample in micro.sample_ids if sample != FILLER]


@pytest.fixture
def data(tmp_path: Path) -> PreparedData:
    return store(tmp_path / "store", [3 + number * 7 % 20 for number in range(23)])


def labels_of(rank_batches: list[GlobalBatch]) -> list[int]:
    found = [micro.labels[micro.labels != IGNORED] for batch in rank_batches for micro in batch.micro_batches]
    return sorted(torch.cat(found).tolist())


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("micro_batch_size", [1, 2, 5])
def test_global_batches_are_the_same_for_any_ranks(data: PreparedData, ranks: int, micro_batch_size: int) -> None:
    alone = list(batches(data, num_epochs=2).from_(0))
    sizes = {"ranks": ranks, "micro_batch_size": micro_batch_size}
    shares = [list(batches(data, rank=rank, **sizes, num_epochs=2).from_(0)) for rank in range(ranks)]
    for step, whole in enumerate(alone):
        parts = [share[step] for share in shares]
        for part in parts:
            assert (part.step, part.epoch, part.sample_ids) == (whole.step, whole.epoch, whole.sample_ids)
            assert (part.tokens, part.trained_tokens) == (whole.tokens, whole.trained_tokens)
        assert Counter(sample for part in parts for sample in seen(part)) == Counter(whole.sample_ids)
        assert labels_of(parts) == labels_of([whole])
        assert whole.trained_tokens == len(labels_of(parts)) == data.trained_counts[list(whole.sample_ids)].sum()
        assert whole.tokens == data.lengths[list(whole.sample_ids)].sum()
        shapes = [[micro.input_ids.shape for micro in part.micro_batches] for part in parts]
        assert all(shape == shapes[0] for shape in shapes)


def test_a_batch_is_the_same_reached_directly_and_mixes_no_two_epochs(data: PreparedData) -> None:
    for step, expected in enumerate(batches(data, num_epochs=3).from_(0)):
        direct = next(batches(data, num_epochs=3).from_(step))
        assert (direct.step, direct.epoch, direct.sample_ids) == (expected.step, expected.epoch, expected.sample_ids)
        for one, other in zip(direct.micro_batches, expected.micro_batches, strict=True):
            assert torch.equal(one.input_ids, other.input_ids)
            assert torch.equal(one.labels, other.labels)
    found = list(batches(data, num_epochs=2).from_(0))
    assert [len(batch.sample_ids) for batch in found] == [6, 6, 6, 5] * 2
    assert [batch.epoch for batch in found] == [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0]
    assert {len(batch.micro_batches) for batch in found} == {3}
    larger = batches(data, global_batch_size=10**15, num_epochs=2)
    assert [len(batch.sample_ids) for batch in larger.from_(0)] == [23, 23]


@pytest.mark.parametrize(
    ("num_epochs", "max_steps", "total"),
    [(1.0, None, 4), (2.5, None, 10), (0.1, None, 1), (1.0, 7, 7), (0.75, None, 3), (1e-6, None, 1)],
)
def test_steps_follow_from_epochs(data: PreparedData, num_epochs: float, max_steps: int | None, total: int) -> None:
    run = batches(data, num_epochs=num_epochs, max_steps=max_steps)
    assert (run.steps_per_epoch, run.total_steps, len(list(run.from_(0)))) == (4, total, total)


def test_rows_are_padded_on_the_right_to_multiples_of_eight_and_stay_one_document(data: PreparedData) -> None:
    fillers = 0
    for micro in (micro for batch in batches(data).from_(0) for micro in batch.micro_batches):
        samples = [sample for sample in micro.sample_ids if sample != FILLER]
        assert micro.input_ids.shape[1] == -(-int(data.lengths[samples].max()) // 8) * 8
        for row, sample in enumerate(micro.sample_ids):
            length = 0 if sample == FILLER else int(data.lengths[sample])
            fillers += sample == FILLER
            assert (micro.input_ids[row, :length] != PADDING).all()
            assert (micro.input_ids[row, length:] == PADDING).all()
            assert (micro.labels[row, length:] == IGNORED).all()
        assert torch.equal(micro.position_ids, torch.arange(micro.input_ids.shape[1]).expand_as(micro.position_ids))
    assert fillers == 1


@pytest.mark.parametrize("ranks", [1, 3])
def test_joined_rows_are_documents_of_one_row_as_long_on_every_rank(data: PreparedData, ranks: int) -> None:
    made = [batches(data, rank=rank, ranks=ranks, micro_batch_size=4, joins=True) for rank in range(ranks)]
    for parts in zip(*(share.from_(0) for share in made), strict=True):
        assert sorted(sample for part in parts for sample in seen(part)) == sorted(parts[0].sample_ids)
        for everyone in zip(*(part.micro_batches for part in parts), strict=True):
            most = max(int(micro.real.sum()) for micro in everyone)
            for micro in everyone:
                assert micro.input_ids.shape == (1, -(-max(most, 1) // 8) * 8)
                lengths = [int(data.lengths[one]) if one != FILLER else 0 for one in micro.sample_ids]
                left = micro.input_ids.shape[1] - sum(lengths)
                assert micro.documents is not None
                assert sorted(micro.documents.ends.diff().tolist()) == sorted(n for n in [*lengths, left] if n)
                assert [int(micro.alone(at).real.sum()) for at in range(4)] == lengths


@pytest.mark.parametrize("micro_batch_size", [1, 4])
def test_no_rank_has_the_longest_rows_of_each_micro_batch(tmp_path: Path, micro_batch_size: int) -> None:
    lengths = list(range(16, 0, -1))
    data, wanted = store(tmp_path, lengths), {"global_batch_size": 16, "micro_batch_size": micro_batch_size}
    shares = [next(batches(data, rank=rank, ranks=2, **wanted).from_(0)) for rank in range(2)]
    assert [sum(int(data.lengths[sample]) for sample in seen(share)) for share in shares] == [68, 68]


def test_labels_are_the_next_tokens_and_rows_stop_at_max_length(tmp_path: Path) -> None:
    short = store(tmp_path, [13, 11], max_length=13)
    assert next(batches(short).from_(0)).micro_batches[0].input_ids.shape == (2, 13)
    data = store(tmp_path / "six", [6])
    ids, positions, labels = data.sample(0)
    assert ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert positions.tolist() == [0, 1, 2, 3, 4, 5]
    assert labels.tolist() == [IGNORED, IGNORED, 4, 5, 6, IGNORED]
    assert data.trained_counts.tolist() == [3] and data.where(0) == "source-0.jsonl:1"


def test_padding_behind_a_pack_is_a_document_and_packs_do_not_mix_sources(tmp_path: Path) -> None:
    data = store(tmp_path, [9, 4, 6], packed=True, max_length=20)
    micro = next(batches(data, micro_batch_size=1).from_(0)).micro_batches[0]
    assert micro.input_ids.shape == (1, 20)
    assert micro.position_ids[0].tolist() == [*range(9), *range(4), *range(6), 0]
    assert find_packed_sequence_indices(micro.position_ids)[0].tolist() == [0] * 9 + [1] * 4 + [2] * 6 + [3]
    weighed = {"sources": [0, 0, 0, 1, 1, 1], "weights": (1.0, 2.0)}
    data = store(tmp_path / "weighed", [3, 3, 3, 3, 3, 3], **weighed, packed=True, max_length=9)
    assert [data.documents(sample).tolist() for sample in range(len(data))] == [[0, 1, 2], [3, 4, 5]]
    found = [sample for batch in batches(data, global_batch_size=2).from_(0) for sample in batch.sample_ids]
    assert sorted(found) == [0, 1, 1]


@pytest.mark.parametrize("packed", [False, True])
def test_the_rows_of_a_trial_are_all_the_longest(packed: bool, tmp_path: Path) -> None:
    weighed = {"sources": [0, 0, 1, 1], "weights": (1.0, 0.3)}
    data = store(tmp_path, [3, 5, 12, 9], **weighed, packed=packed, max_length=12)
    alone, longest = data.longest_alone(6), data.lengths.tolist().index(12)
    assert alone.lengths.tolist() == [12] * 6
    for sample in range(6):
        for mine, theirs in zip(alone.sample(sample), data.sample(longest), strict=True):
            assert mine.tolist() == theirs.tolist()
    steps = list(batches(alone, global_batch_size=6, max_steps=2).from_(0))
    assert [sorted(step.sample_ids) for step in steps] == [[*range(6)]] * 2
    assert [step.trained_tokens for step in steps] == [6 * int(data.trained_counts[longest])] * 2


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_evaluation_sees_every_sample_once_for_any_number_of_ranks(data: PreparedData, ranks: int) -> None:
    found = [list(EvalBatches(batcher(data, rank=rank, ranks=ranks))) for rank in range(ranks)]
    assert {len(share) for share in found} == {-(-23 // (2 * ranks))}
    assert sorted(sample for share in found for batch in share for sample in seen(batch)) == list(range(23))
    assert sum(batch.trained_tokens for batch in found[0]) == data.trained_counts.sum()
    assert labels_of([batch for share in found for batch in share]) == labels_of(list(batches(data).from_(0)))
    for parts in zip(*found, strict=True):
        assert len({part.micro_batches[0].input_ids.shape for part in parts}) == 1


def test_packed_and_unpacked_rows_give_the_same_loss(tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=97, **shape)).eval()
    lengths = [5, 17, 9, 30, 3, 12, 22, 8]

    def total_loss(data: PreparedData) -> float:
        total = 0.0
        for batch in batches(data, global_batch_size=4).from_(0):
            for micro in batch.micro_batches:
                with torch.no_grad():
                    output = model(input_ids=micro.input_ids % 97, position_ids=micro.position_ids, use_cache=False)
                labels = torch.where(micro.labels == IGNORED, IGNORED, micro.labels % 97).flatten()
                total += float(cross_entropy(output.logits.flatten(0, 1), labels, reduction="sum"))
        return total

    loose = total_loss(store(tmp_path / "loose", lengths))
    assert total_loss(store(tmp_path / "packed", lengths, packed=True, max_length=40)) == pytest.approx(loose, rel=1e-5)


@pytest.mark.parametrize("multiple", [2, 3, 16])
def test_ranks_that_share_a_sequence_get_even_parts_of_the_same_samples(data: PreparedData, multiple: int) -> None:
    plain, padded = list(batches(data).from_(0)), list(batches(data, length_multiple=multiple).from_(0))
    for one, other in zip(plain, padded, strict=True):
        assert (other.tokens, other.trained_tokens, seen(other)) == (one.tokens, one.trained_tokens, seen(one))
        for short, long in zip(one.micro_batches, other.micro_batches, strict=True):
            length = short.input_ids.shape[1]
            assert length <= long.input_ids.shape[1] < length + multiple
            assert long.input_ids.shape[1] % multiple == 0
            assert torch.equal(long.input_ids[:, :length], short.input_ids)
            assert torch.equal(long.labels[:, :length], short.labels)
            assert bool((long.labels[:, length:] == IGNORED).all())


def order(sizes: list[int], weights: list[float], *, epoch: int = 0, seed: int = 1, shuffle: bool = True) -> list[int]:
    sources = np.repeat(np.arange(len(sizes), dtype=np.uint16), sizes)
    return epoch_order(sources, weights=weights, seed=seed, epoch=epoch, shuffle=shuffle).tolist()


def test_each_epoch_and_seed_has_an_order_of_its_own_and_the_same_elsewhere() -> None:
    assert permutation(8, 42, 1, 0).tolist() == [7, 0, 1, 6, 5, 4, 3, 2]
    epochs = [order([101], [1.0], epoch=epoch, seed=seed) for epoch, seed in ((0, 1), (1, 1), (0, 2))]
    assert all(sorted(epoch) == list(range(101)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert order([3, 2], [1.0, 1.0], shuffle=False) == [0, 1, 2, 3, 4]


def test_a_weight_says_how_often_rows_are_shown_in_each_epoch_and_in_the_long_run() -> None:
    assert Counter(order([3, 2], [2.0, 1.0])) == {0: 2, 1: 2, 2: 2, 3: 1, 4: 1}
    assert len(order([10, 10], [1.0, 0.001])) == 11
    assert sorted(order([3, 0], [1.0, 0.5])) == [0, 1, 2]
    seen = Counter[int]()
    for epoch in range(10):
        shown = order([10], [0.7], epoch=epoch)
        assert len(set(shown)) == len(shown) == 7
        seen.update(shown)
    assert set(seen.values()) == {7}
    for weights in ([1.0, 1.0], [2.5, 0.3], [0.001, 3.0]):
        lengths = {len(order([7, 5], weights, epoch=epoch)) for epoch in range(4)}
        assert lengths == {samples_per_epoch([7, 5], weights)}, "an epoch is as long as it is said to be"
    for shuffle in (True, False):
        one, other = (order([10], [0.5], epoch=epoch, shuffle=shuffle) for epoch in (0, 1))
        assert len(one) == len(other) == 5
        assert sorted(one + other) == list(range(10)), "half of the rows, and then the other half"


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=200), spare=st.integers(0, 60))
@settings(max_examples=200)
def test_every_document_stands_once_and_no_pack_is_overfull(lengths: list[int], spare: int) -> None:
    capacity, sizes = max(lengths) + spare, np.array(lengths, np.int32)
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
