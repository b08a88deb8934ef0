"""Global batches: the same samples in the same order for any number of ranks, and this rank's share as tensors.

What a global batch holds depends on the data, the seed, the global batch size and the step alone. Inside it, samples
are sorted by length and dealt out in blocks, so that a micro-batch needs little padding and ranks are evenly loaded;
each rank computes every other's shapes from the store, so shapes agree without a word between them. What is missing to
a full last batch is filled with samples of zero weight: nothing is seen twice and nothing is left out.

There is no attention mask: transformers builds a block-diagonal one from positions that restart. It does so only where
no key-value cache is made, so packed data needs `use_cache=False`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shardwise.data.order import epoch_order, samples_per_epoch
from shardwise.data.store import IGNORED, PreparedData
from shardwise.spec.execution import padded_length

FILLER = -1
"""Sample id of a row of padding that counts nowhere."""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What one forward pass of one rank sees.

    Attributes:
        input_ids: int64, shape [micro_batch_size, length].
        position_ids: same shape; they restart at 0 in each document of packed data.
        labels: same shape, already shifted: `labels[:, t]` is the token after t; -100 does not count.
        sample_ids: the samples, -1 for a filler of zero weight.
    """

    input_ids: Tensor
    position_ids: Tensor
    labels: Tensor
    sample_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class GlobalBatch:
    """One optimizer step.

    Attributes:
        step: 1-based.
        epoch: how many epochs are done after this step; 1.0 at the end of the first.
        sample_ids: the whole global batch of all ranks, in order.
        tokens: tokens of the whole global batch, without padding.
        trained_tokens: its labels that count: what the sum of losses is divided by.
        micro_batches: this rank's share; as many, and of the same shapes, on every rank.
    """

    step: int
    epoch: float
    sample_ids: tuple[int, ...]
    tokens: int
    trained_tokens: int
    micro_batches: tuple[MicroBatch, ...]

    @property
    def checksum(self) -> int:
        """Of the tokens and labels of this rank's share, below 2**32."""
        value = 0
        for micro in self.micro_batches:
            for tensor in (micro.input_ids, micro.labels):
                value = zlib.crc32(tensor.numpy().tobytes(), value)
        return value


@dataclass(frozen=True, kw_only=True)
class _Dealer:
    """Deals a global batch out to ranks and micro-batches."""

    data: PreparedData
    micro_batch_size: int
    data_rank: int
    data_world_size: int
    padding_id: int
    fixed_length: int | None
    length_multiple: int

    def deal(self, ids: Ids, *, num_micro_batches: int, step: int, epoch: float) -> GlobalBatch:
        lengths = self.data.lengths[ids]
        by_length = ids[np.lexsort((ids, -lengths.astype(np.int64)))]
        seats = np.full(num_micro_batches * self.data_world_size * self.micro_batch_size, FILLER)
        seats[: len(ids)] = by_length
        seats = seats.reshape(num_micro_batches, self.data_world_size, self.micro_batch_size)
        return GlobalBatch(
            step=step,
            epoch=epoch,
            sample_ids=tuple(ids.tolist()),
            tokens=int(lengths.sum(dtype=np.int64)),
            trained_tokens=int(self.data.trained_counts[ids].sum(dtype=np.int64)),
            micro_batches=tuple(self._micro_batch(everyone) for everyone in seats),
        )

    def _micro_batch(self, everyone: Ids) -> MicroBatch:
        """This rank's part of a micro-step; `everyone` has shape [data_world_size, micro_batch_size]."""
        length = self._length(everyone[everyone != FILLER])
        mine = everyone[self.data_rank]
        shape = (len(mine), length)
        input_ids, labels = np.full(shape, self.padding_id, np.int64), np.full(shape, IGNORED, np.int64)
        position_ids = np.tile(np.arange(length), (len(mine), 1))
        for row, sample in enumerate(mine.tolist()):
            if sample == FILLER:
                continue
            ids, positions, targets = self.data.sample(sample)
            stop = len(ids)
            input_ids[row, :stop], position_ids[row, :stop], labels[row, :stop] = ids, positions, targets
            if self.data.packed:  # padding is one more document; unpacked rows stay causal, which needs no mask
                position_ids[row, stop:] = np.arange(length - stop)
        return MicroBatch(
            input_ids=torch.from_numpy(input_ids),
            position_ids=torch.from_numpy(position_ids),
            labels=torch.from_numpy(labels),
            sample_ids=tuple(mine.tolist()),
        )

    def _length(self, samples: Ids) -> int:
        """The longest sample of the micro-step on any rank, rounded up; fillers alone need little.

        Padding comes last and counts nowhere: rounding up for the ranks that share a sequence changes no figure.
        """
        if self.fixed_length is not None:
            return _up(self.fixed_length, self.length_multiple)
        longest = int(self.data.lengths[samples].max(initial=1))
        return _up(padded_length(longest, max_length=self.data.max_length), self.length_multiple)


def _up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


class Batches:
    """The global batches of a training run.

    Attributes:
        steps_per_epoch: the last step of an epoch may hold fewer samples; no batch mixes two epochs.
        total_steps: `max_steps`, or those of `num_epochs`.
    """

    def __init__(  # noqa: PLR0913 - each is a number the trainer holds anyway; a noun would only be unpacked again
        self,
        data: PreparedData,
        *,
        global_batch_size: int,
        micro_batch_size: int,
        data_rank: int,
        data_world_size: int,
        seed: int,
        shuffle: bool,
        num_epochs: float,
        max_steps: int | None,
        padding_id: int,
        fixed_length: int | None = None,
        length_multiple: int = 1,
    ) -> None:
        self._dealer = _Dealer(
            data=data,
            micro_batch_size=micro_batch_size,
            data_rank=data_rank,
            data_world_size=data_world_size,
            padding_id=padding_id,
            fixed_length=fixed_length,
            length_multiple=length_multiple,
        )
        self._global_batch_size = global_batch_size
        self._seed = seed
        self._shuffle = shuffle
        sizes = np.bincount(data.sample_sources, minlength=len(data.weights)).tolist()
        per_epoch = samples_per_epoch(sizes, data.weights)
        self.steps_per_epoch = -(-per_epoch // global_batch_size)
        # A batch never holds more than an epoch, however large it was asked to be.
        self._num_micro_batches = -(-min(global_batch_size, per_epoch) // (micro_batch_size * data_world_size))
        # 0.1 * 30 is 3.0000000000000004: a step must not come of rounding
        self.total_steps = max_steps or max(1, math.ceil(round(num_epochs * self.steps_per_epoch, 6)))

    def from_(self, step: int) -> Iterator[GlobalBatch]:
        """The batches after `step` optimizer steps; nothing is replayed to get there."""
        data = self._dealer.data
        epoch, order = -1, np.empty(0, np.int64)
        for done in range(step, self.total_steps):
            if done // self.steps_per_epoch != epoch:
                epoch = done // self.steps_per_epoch
                order = epoch_order(
                    data.sample_sources, weights=data.weights, seed=self._seed, epoch=epoch, shuffle=self._shuffle
                )
            start = done % self.steps_per_epoch * self._global_batch_size
            yield self._dealer.deal(
                order[start : start + self._global_batch_size],
                num_micro_batches=self._num_micro_batches,
                step=done + 1,
                epoch=(done + 1) / self.steps_per_epoch,
            )


class EvalBatches:
    """Every sample exactly once, longest first, so that memory runs out at the start or not at all.

    Each `GlobalBatch` holds one micro-batch per rank; sums over all of them are the same for any number of ranks.
    """

    def __init__(
        self,
        data: PreparedData,
        *,
        micro_batch_size: int,
        data_rank: int,
        data_world_size: int,
        padding_id: int,
        fixed_length: int | None = None,
        length_multiple: int = 1,
    ) -> None:
        self._dealer = _Dealer(
            data=data,
            micro_batch_size=micro_batch_size,
            data_rank=data_rank,
            data_world_size=data_world_size,
            padding_id=padding_id,
            fixed_length=fixed_length,
            length_multiple=length_multiple,
        )
        self._samples_per_batch = micro_batch_size * data_world_size

    def __len__(self) -> int:
        return math.ceil(len(self._dealer.data) / self._samples_per_batch)

    def __iter__(self) -> Iterator[GlobalBatch]:
        order = np.argsort(-self._dealer.data.lengths.astype(np.int64), kind="stable")
        for number in range(len(self)):
            start = number * self._samples_per_batch
            ids = order[start : start + self._samples_per_batch]
            yield self._dealer.deal(ids, num_micro_batches=1, step=number + 1, epoch=(number + 1) / len(self))
