"""Global batches, the same for any number of ranks, and their micro-batches of one rank as tensors.

Samples are sorted by length and cut into blocks, so that micro-batches need little padding, and
each block is dealt evenly to the ranks. Every rank computes the shapes of all ranks. Missing
samples of the last batch are filled with rows of zero weight.

There is no attention mask: kernels are told where packed documents lie, or transformers builds a
mask from positions that restart, where `use_cache=False`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shardwise.data.order import epoch_order, pack, samples_per_epoch
from shardwise.data.store import IGNORED, PreparedData
from shardwise.spec.layout.execution import padded_length

FILLER = -1
"""Sample id of a row of padding that counts nowhere."""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Where the documents of packed rows lie, once the rows of a micro-batch are concatenated.
    `ends`: int32 [documents + 1], 0 and where each ends; the padding of a row is one too;
    `longest`: its tokens, rounded up to a power of two, so that compiled code meets few values."""

    ends: Tensor
    longest: int

    @classmethod
    def of(cls, position_ids: Tensor) -> Self:
        """From positions [micro_batch_size, length] on the CPU, which restart in each document."""
        starts = (position_ids.flatten() == 0).nonzero().squeeze(1).int()
        ends = torch.cat([starts, starts.new_tensor([position_ids.numel()])])
        return cls(ends=ends, longest=1 << (int(ends.diff().max()) - 1).bit_length())

    @property
    def words(self) -> dict[str, Any]:
        """What transformers' models hand to a kernel that takes documents one by one."""
        ends, longest = ("cu_seq_lens_q", "cu_seq_lens_k"), ("max_length_q", "max_length_k")
        return dict.fromkeys(ends, self.ends) | dict.fromkeys(longest, self.longest)


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What one forward pass of one rank sees. Of preferences each sample has two rows, chosen and
    rejected, one after the other; packed, they are documents of as few rows as hold them.

    Attributes:
        input_ids: int64, shape [micro_batch_size * sides, length], or fewer rows.
        position_ids: same shape; they restart at 0 in each document of packed data.
        labels: same shape, already shifted: `labels[:, t]` is the token after t; -100 does not
            count.
        real: bool, same shape: what is no padding.
        owners: int64, same shape: which of its samples' rows (sample * sides + side) a position is
            of.
        sides: rows of a sample.
        documents: of packed rows.
    """

    input_ids: Tensor
    position_ids: Tensor
    labels: Tensor
    real: Tensor
    owners: Tensor
    sample_ids: tuple[int, ...]
    sides: int = 1
    documents: Documents | None = None

    @property
    def num_rows(self) -> int:
        """Of its samples, wherever they lie."""
        return len(self.sample_ids) * self.sides

    def alone(self, at: int) -> Self:
        """One of its samples as a micro-batch of its own, of as long rows."""
        length, numbers = self.owners.shape[1], range(at * self.sides, (at + 1) * self.sides)
        made: dict[str, Tensor] = {}
        for name, filled in (("input_ids", 0), ("position_ids", 0), ("labels", IGNORED), ("real", False)):
            tensor: Tensor = getattr(self, name)
            made[name] = tensor.new_full((self.sides, length), filled)
            for side, number in enumerate(numbers):
                own = tensor[self.owners == number][:length]
                made[name][side, : len(own)] = own
                if name == "position_ids":
                    made[name][side, len(own) :] = torch.arange(length - len(own))
        owners = torch.arange(self.sides)[:, None].expand(-1, length)
        documents = self.documents and Documents.of(made["position_ids"])
        one = self.sample_ids[at : at + 1]
        return type(self)(**made, owners=owners, sample_ids=one, sides=self.sides, documents=documents)


@dataclass(frozen=True, kw_only=True)
class GlobalBatch:
    """One optimizer step. `epoch`: 1.0 at the end of the first; `trained_tokens`: labels that
    count; `micro_batches`: this rank's share, as many and of the same shapes on every rank."""

    step: int
    epoch: float
    sample_ids: tuple[int, ...]
    tokens: int
    trained_tokens: int
    micro_batches: tuple[MicroBatch, ...]


@dataclass(frozen=True, kw_only=True)
class Batcher:
    """Splits a global batch into micro-batches, those among ranks. `joins`: into single rows."""

    data: PreparedData
    micro_batch_size: int
    data_rank: int
    data_world_size: int
    padding_id: int
    length_multiple: int = 1
    joins: bool = False

    @property
    def samples_per_forward(self) -> int:
        """Sequences that all ranks together take a forward of at once."""
        return self.micro_batch_size * self.data_world_size

    def forwards(self, ids: Ids) -> Iterator[GlobalBatch]:
        """Samples in this order, as many at a time as all ranks take a forward of at once."""
        starts = range(0, len(ids), self.samples_per_forward)
        for number, start in enumerate(starts, start=1):
            some = ids[start : start + self.samples_per_forward]
            yield self.split(some, num_micro_batches=1, step=number, epoch=number / len(starts))

    def split(self, ids: Ids, *, num_micro_batches: int, step: int, epoch: float) -> GlobalBatch:
        """This rank's share of a global batch, in `num_micro_batches` on each rank."""
        lengths = self.data.lengths[ids]
        by_length = ids[np.lexsort((ids, -lengths.astype(np.int64)))]
        slots = np.full(num_micro_batches * self.data_world_size * self.micro_batch_size, FILLER)
        slots[: len(ids)] = by_length
        # Each second group in reverse, so that no rank always has the longest rows: experts do not
        # see padding.
        dealt = slots.reshape(-1, self.data_world_size)
        dealt[1::2] = dealt[1::2, ::-1].copy()
        dealt = dealt.reshape(num_micro_batches, self.micro_batch_size, self.data_world_size)
        return GlobalBatch(
            step=step,
            epoch=epoch,
            sample_ids=tuple(ids.tolist()),
            tokens=self.data.tokens_of(ids),
            trained_tokens=int(self.data.trained_counts[ids].sum(dtype=np.int64)),
            micro_batches=tuple(self._micro_batch(everyone.T) for everyone in dealt),
        )

    def _micro_batch(self, everyone: Ids) -> MicroBatch:
        """This rank's part of a micro-step, [data_world_size, micro_batch_size]."""
        mine, sides, apart = everyone[self.data_rank], self.data.sides, self.data.packed or self.joins
        length = self._length(np.where(everyone == FILLER, 0, self.data.lengths[everyone]))
        if self.data.joined:  # as many rows on every rank
            every = [self._places(one, length=length) for one in everyone.tolist()]
            placed, rows = every[self.data_rank], max((row for places in every for _, row, _ in places), default=0) + 1
        else:
            placed, rows = self._places(mine.tolist(), length=length), 1 if self.joins else len(mine) * sides
        shape = (rows, length)
        input_ids, labels = np.full(shape, self.padding_id, np.int64), np.full(shape, IGNORED, np.int64)
        real, position_ids = np.zeros(shape, np.bool_), np.tile(np.arange(length), (rows, 1))
        owners = np.zeros(shape, np.int64) if self.data.joined else np.arange(rows)[:, None].repeat(length, 1)
        stored = {at: self.data.rows(sample) for at, sample in enumerate(mine.tolist()) if sample != FILLER}
        for number, row, start in placed:
            ids, positions, targets = stored[number // sides][number % sides]
            here, stop = slice(start, start + len(ids)), start + len(ids)
            input_ids[row, here], position_ids[row, here], labels[row, here] = ids, positions, targets
            real[row, here], owners[row, start:] = True, number
            if apart:  # padding is one more document; other rows need no mask
                position_ids[row, stop:] = np.arange(length - stop)
        positions = torch.from_numpy(position_ids)
        return MicroBatch(
            input_ids=torch.from_numpy(input_ids),
            position_ids=positions,
            labels=torch.from_numpy(labels),
            real=torch.from_numpy(real),
            owners=torch.from_numpy(owners),
            sample_ids=tuple(mine.tolist()),
            sides=sides,
            documents=Documents.of(positions) if apart else None,
        )

    def _places(self, samples: Sequence[int], *, length: int) -> list[tuple[int, int, int]]:
        """Of each row its number, its row of the micro-batch, and where it begins there. What is
        joined fills rows as long as the longest, never more tokens than with padding."""
        sides = self.data.sides
        there = [(at, sample) for at, sample in enumerate(samples) if sample != FILLER]
        numbers = [at * sides + side for at, _ in there for side in range(sides)]
        if not (self.data.joined or self.joins) or not numbers:
            return [(number, number, 0) for number in numbers]
        sizes = np.concatenate([self.data.row_lengths(sample) for _, sample in there]).astype(np.int32)
        offsets, order = pack(sizes, capacity=length)
        begins = [np.cumsum(sizes[order[a:b]]) - sizes[order[a:b]] for a, b in pairwise(offsets)]
        rows = np.repeat(np.arange(len(begins)), np.diff(offsets))
        found = zip(order.tolist(), rows.tolist(), np.concatenate(begins).tolist(), strict=True)
        return [(numbers[at], row, start) for at, row, start in found]

    def _length(self, sizes: npt.NDArray[np.int64]) -> int:
        """The longest row of the micro-step on any rank, rounded up; `sizes`: samples', by rank."""
        most = self.data.max_length * (self.micro_batch_size if self.joins else 1)
        length = padded_length(max(1, int((sizes.sum(1) if self.joins else sizes).max())), max_length=most)
        return -(-length // self.length_multiple) * self.length_multiple


class Batches:
    """The global batches of a run. An epoch's last may be smaller; none mixes two epochs."""

    def __init__(
        self,
        batcher: Batcher,
        *,
        global_batch_size: int,
        seed: int,
        shuffle: bool,
        num_epochs: float,
        max_steps: int | None,
    ) -> None:
        self.batcher, data = batcher, batcher.data
        self._global_batch_size = global_batch_size
        self._seed = seed
        self._shuffle = shuffle
        sizes = np.bincount(data.sample_sources, minlength=len(data.weights)).tolist()
        per_epoch = samples_per_epoch(sizes, data.weights)
        self.steps_per_epoch = -(-per_epoch // global_batch_size)
        # A batch never holds more than an epoch, however large it was asked to be.
        self._num_micro_batches = -(-min(global_batch_size, per_epoch) // batcher.samples_per_forward)
        # 0.1 * 30 is 3.0000000000000004: a step must not come of rounding
        self.total_steps = max_steps or max(1, math.ceil(round(num_epochs * self.steps_per_epoch, 6)))

    def ids_from(self, step: int) -> Iterator[Ids]:
        """The samples of each batch after `step` steps."""
        data = self.batcher.data
        epoch, order = -1, np.empty(0, np.int64)
        for done in range(step, self.total_steps):
            if done // self.steps_per_epoch != epoch:
                epoch = done // self.steps_per_epoch
                order = epoch_order(
                    data.sample_sources, weights=data.weights, seed=self._seed, epoch=epoch, shuffle=self._shuffle
                )
            start = done % self.steps_per_epoch * self._global_batch_size
            yield order[start : start + self._global_batch_size]

    def from_(self, step: int) -> Iterator[GlobalBatch]:
        """The batches after `step` optimizer steps; nothing is replayed to get there."""
        for done, ids in enumerate(self.ids_from(step), start=step + 1):
            micros = self._num_micro_batches
            yield self.batcher.split(ids, num_micro_batches=micros, step=done, epoch=done / self.steps_per_epoch)


class EvalBatches:
    """Every sample once, longest first; each `GlobalBatch` holds one micro-batch per rank."""

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher

    def __iter__(self) -> Iterator[GlobalBatch]:
        yield from self._batcher.forwards(np.argsort(-self._batcher.data.lengths.astype(np.int64), kind="stable"))
