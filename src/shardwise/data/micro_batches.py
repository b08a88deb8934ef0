"""Splits a global batch into micro-batches of tensors for one rank.

Samples are sorted by length and cut into blocks, so that micro-batches need little padding. Every rank computes the
shapes of all ranks. Missing samples of the last batch are filled with rows of zero weight.

There is no attention mask: kernels are told where packed documents lie, or transformers builds a mask from positions
that restart, where `use_cache=False`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shardwise.data.store import IGNORED, PreparedData
from shardwise.spec.layout.execution import padded_length

FILLER = -1
"""Sample id of a row of padding that counts nowhere."""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Where the documents of packed rows lie, once the rows of a micro-batch are concatenated.

    Attributes:
        ends: int32 [documents + 1], 0 and where each document ends; the padding of a row is one too.
        longest: tokens of the longest, rounded up to a power of two, so that compiled code meets few values.
    """

    ends: Tensor
    longest: int

    @classmethod
    def of(cls, position_ids: Tensor) -> Documents:
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
    rejected, one after the other.

    Attributes:
        input_ids: int64, shape [micro_batch_size * sides, length].
        position_ids: same shape; they restart at 0 in each document of packed data.
        labels: same shape, already shifted: `labels[:, t]` is the token after t; -100 does not
            count.
        real: bool, same shape: what is no padding.
        documents: of packed rows.
    """

    input_ids: Tensor
    position_ids: Tensor
    labels: Tensor
    real: Tensor
    sample_ids: tuple[int, ...]
    documents: Documents | None = None

    @property
    def sides(self) -> int:
        """Rows of a sample."""
        return len(self.input_ids) // len(self.sample_ids)


@dataclass(frozen=True, kw_only=True)
class GlobalBatch:
    """One optimizer step.

    Attributes:
        epoch: how many epochs are done after this step; 1.0 at the end of the first.
        trained_tokens: its labels that count: what the sum of losses is divided by.
        micro_batches: this rank's share; as many, and of the same shapes, on every rank.
    """

    step: int
    epoch: float
    sample_ids: tuple[int, ...]
    tokens: int
    trained_tokens: int
    micro_batches: tuple[MicroBatch, ...]


@dataclass(frozen=True, kw_only=True)
class Batcher:
    """Splits a global batch into micro-batches, and those among ranks."""

    data: PreparedData
    micro_batch_size: int
    data_rank: int
    data_world_size: int
    padding_id: int
    length_multiple: int = 1

    @property
    def samples_per_forward(self) -> int:
        """Sequences that all ranks together take a forward of at once."""
        return self.micro_batch_size * self.data_world_size

    def split(self, ids: Ids, *, num_micro_batches: int, step: int, epoch: float) -> GlobalBatch:
        """This rank's share of a global batch of samples `ids`, in `num_micro_batches` on each rank."""
        lengths = self.data.lengths[ids]
        by_length = ids[np.lexsort((ids, -lengths.astype(np.int64)))]
        slots = np.full(num_micro_batches * self.data_world_size * self.micro_batch_size, FILLER)
        slots[: len(ids)] = by_length
        slots = slots.reshape(num_micro_batches, self.data_world_size, self.micro_batch_size)
        return GlobalBatch(
            step=step,
            epoch=epoch,
            sample_ids=tuple(ids.tolist()),
            tokens=self.data.tokens_of(ids),
            trained_tokens=int(self.data.trained_counts[ids].sum(dtype=np.int64)),
            micro_batches=tuple(self._micro_batch(everyone) for everyone in slots),
        )

    def _micro_batch(self, everyone: Ids) -> MicroBatch:
        """This rank's part of a micro-step; `everyone` has shape [data_world_size, micro_batch_size]."""
        length = self._length(everyone[everyone != FILLER])
        mine, sides = everyone[self.data_rank], self.data.sides
        shape = (len(mine) * sides, length)
        input_ids, labels = np.full(shape, self.padding_id, np.int64), np.full(shape, IGNORED, np.int64)
        real = np.zeros(shape, np.bool_)
        position_ids = np.tile(np.arange(length), (shape[0], 1))
        there = [(at, sample) for at, sample in enumerate(mine.tolist()) if sample != FILLER]
        rows = [(at * sides + side, row) for at, one in there for side, row in enumerate(self.data.rows(one))]
        for row, (ids, positions, targets) in rows:
            stop = len(ids)
            input_ids[row, :stop], position_ids[row, :stop], labels[row, :stop] = ids, positions, targets
            real[row, :stop] = True
            if self.data.packed:  # padding is one more document; unpacked rows stay causal, which needs no mask
                position_ids[row, stop:] = np.arange(length - stop)
        positions = torch.from_numpy(position_ids)
        return MicroBatch(
            input_ids=torch.from_numpy(input_ids),
            position_ids=positions,
            labels=torch.from_numpy(labels),
            real=torch.from_numpy(real),
            sample_ids=tuple(mine.tolist()),
            documents=Documents.of(positions) if self.data.packed else None,
        )

    def _length(self, samples: Ids) -> int:
        """The longest sample of the micro-step on any rank, rounded up."""
        longest = int(self.data.lengths[samples].max(initial=1))
        length = padded_length(longest, max_length=self.data.max_length)
        return -(-length // self.length_multiple) * self.length_multiple
