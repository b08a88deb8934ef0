"""One parameter tensor: its dims, who trains it, how it is stored, and how it is sliced over ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from shardwise.plan.memory.types import FLOAT32_BYTES, Types
from shardwise.spec.layout import rows_of_shard
from shardwise.spec.model import Cut

#: Where a tensor outside the blocks lies in a pipeline; a tied embedding lies at both ends.
Place = Literal["front", "back"]

#: NF4 (Dettmers et al., 2023; as bitsandbytes stores it): half a byte per element; double quantisation leaves one byte
#: of scale per block of 64, and a float32 per 256 of those.
NF4_BYTES = 0.5
_SCALE_BLOCK, _SCALES_PER_BLOCK = 64, 256
#: Two code books (256 and 16 float32) and the offset of the scales, once per matrix.
_CODE_BYTES = 4 * (256 + 16 + 1)


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One parameter.

    Attributes:
        rows: its first dim, along which it is sharded; of stacked experts their number.
        columns: elements per row.
        trained: it has a gradient.
        quantised: it is stored in NF4.
        widened: frozen in float32, as PEFT's `prepare_model_for_kbit_training` leaves what is not quantised.
        last: of stacked experts, the last dim of each; 0 for what is no stack.
        count: how many alike there are.
        cut: the dim that tensor parallelism slices, None for a tensor that every rank holds whole.
        place: the end of a pipeline that holds it, for tensors outside the blocks.
    """

    name: str
    rows: int
    columns: int = 1
    trained: bool = True
    quantised: bool = False
    widened: bool = False
    last: int = 0
    count: int = 1
    cut: Cut | None = None
    place: Place = "front"

    @property
    def elements(self) -> int:
        """Elements of all `count` tensors."""
        return self.count * self.rows * self.columns

    def element_bytes(self, types: Types) -> float:
        """Bytes of one element in storage, without the scales of quantised ones."""
        if self.quantised:
            return NF4_BYTES
        if self.widened:
            return FLOAT32_BYTES
        return types.trainable if self.trained else types.frozen

    @property
    def scale_bytes(self) -> int:
        """Bytes of scales and code books of all `count` tensors; sharding leaves them whole on every rank."""
        if not self.quantised:
            return 0
        blocks = -(-self.rows * self.columns // _SCALE_BLOCK)
        return self.count * (blocks + FLOAT32_BYTES * -(-blocks // _SCALES_PER_BLOCK) + _CODE_BYTES)

    def kept(self, *, degree: int, index: int) -> int:
        """Elements, of all `count` tensors, of one shard.

        Rows are cut as `torch.chunk` cuts. Stacked experts are cut inside where there are more ranks than experts, as
        torchtitan does; FSDP2 alone would pad them to one expert a rank.
        """
        if self.last:
            return self.count * rows_of_shard(self.rows * self.columns, degree=degree, index=index)
        return self.count * self.columns * rows_of_shard(self.rows, degree=degree, index=index)

    def factors(self, kept: int) -> int:
        """Row and column sums that Adafactor keeps for so many elements; all elements of a vector (Shazeer and Stern,
        2018)."""
        if self.columns == 1 or not kept:
            return kept
        if self.last:
            sums = self.rows * (self.columns // self.last + self.last)
            return -(-sums * kept // (self.rows * self.columns))
        return kept // self.columns + self.columns

    def sliced(self, *, degree: int, index: int) -> Tensor:
        """The slice of one tensor-parallel rank, cut as `torch.chunk` cuts."""
        if degree == 1 or self.cut is None:
            return self
        kept = rows_of_shard(getattr(self, self.cut), degree=degree, index=index)
        return replace(self, **{self.cut: kept})
