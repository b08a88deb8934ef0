"""Which samples a rank saw, compared with the store's; digests that add up over ranks."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from shardwise.data.micro_batches import FILLER, GlobalBatch, MicroBatch
from shardwise.data.order import mix
from shardwise.data.store import IGNORED, Ints, PreparedData

STRANGER = -2
"""Stands for a row that is not the sample whose number it bears."""

_BITS = 52


class Sight(NamedTuple):
    """What a rank saw in a step, as numbers that a float64 holds exactly: of its tokens, positions
    and labels; of the samples in its rows; of what it takes for the global batch."""

    checksum: int
    seen: int
    asked: int


def look(batch: GlobalBatch, data: PreparedData) -> Sight:
    """Rows are compared with the store's, each token of them."""
    seen = samples_seen(batch, data)
    return Sight(checksum=checksum(batch), seen=digest(seen), asked=digest(batch.sample_ids))


def checksum(batch: GlobalBatch) -> int:
    """Of the tokens, positions and labels of this rank's share, below 2**32."""
    value = 0
    for micro in batch.micro_batches:
        for tensor in (micro.input_ids, micro.position_ids, micro.labels):
            value = zlib.crc32(tensor.numpy().data, value)
    return value


def samples_seen(batch: GlobalBatch, data: PreparedData) -> list[int]:
    """The samples of this rank's rows, no fillers; `STRANGER` for a row the store has not."""
    found = ((micro, at) for micro in batch.micro_batches for at in range(len(micro.sample_ids)))
    return [sample for sample in (_sample_of(micro, at, data) for micro, at in found) if sample != FILLER]


def _sample_of(micro: MicroBatch, at: int, data: PreparedData) -> int:
    sample, sides = micro.sample_ids[at], micro.sides
    stored = [None] * sides if sample == FILLER else data.rows(sample)
    same = (_is_row(micro, micro.owners == at * sides + side, row) for side, row in enumerate(stored))
    return sample if all(same) else STRANGER


def _is_row(micro: MicroBatch, there: Tensor, stored: tuple[Ints, Ints, Ints] | None) -> bool:
    """Whether what lies there is what is stored, and padding behind it, or nothing but padding."""
    rows = (micro.input_ids[there].numpy(), micro.position_ids[there].numpy(), micro.labels[there].numpy())
    length = 0 if stored is None else len(stored[0])
    alike = stored is None or all(np.array_equal(a[:length], b) for a, b in zip(rows, stored, strict=True))
    return alike and bool((rows[2][length:] == IGNORED).all())


def digest(samples: Sequence[int]) -> int:
    """The sum of SplitMix64 of samples, below 2**52: two multisets collide once in 2**52."""
    return int(mix(np.array(samples, np.int64).astype(np.uint64)).sum(dtype=np.uint64)) % 2**_BITS


def join(digests: Sequence[int]) -> int:
    """The digest of several multisets together."""
    return sum(digests) % 2**_BITS
