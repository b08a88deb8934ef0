"""Global batches: the same samples in the same order for any number of ranks."""

import math
from collections.abc import Iterator

import numpy as np

from shardwise.data.micro_batches import Batcher, GlobalBatch, Ids
from shardwise.data.order import epoch_order, samples_per_epoch


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

    def __len__(self) -> int:
        return math.ceil(len(self._batcher.data) / self._batcher.samples_per_forward)

    def __iter__(self) -> Iterator[GlobalBatch]:
        order = np.argsort(-self._batcher.data.lengths.astype(np.int64), kind="stable")
        for number in range(len(self)):
            start = number * self._batcher.samples_per_forward
            ids = order[start : start + self._batcher.samples_per_forward]
            yield self._batcher.split(ids, num_micro_batches=1, step=number + 1, epoch=(number + 1) / len(self))
