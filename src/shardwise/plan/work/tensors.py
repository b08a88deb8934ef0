"""One parameter tensor: its dims, its bytes by precision and optimizer, its slicing over ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from shardwise.spec.layout.axes import dim_of_shard, rows_of_shard
from shardwise.spec.layout.execution import BLOCK_OF_8_BIT, Precision, has_8bit_moments
from shardwise.spec.layout.optimizers import OPTIMIZER_RULES, OptimizerName
from shardwise.spec.model.shape import Cut
from shardwise.spec.support.rows import NF4_BLOCK

#: Gradients are reduced over ranks in float32, whatever the compute type.
REDUCTION_BYTES = 4
FLOAT32_BYTES, BFLOAT16_BYTES = 4, 2


@dataclass(frozen=True, kw_only=True)
class DtypeBytes:
    """Bytes per element. Gradients and optimizer states have the type of trainable weights;
    `compute` is that of matrix products, the residual stream and gathered weights."""

    trainable: int
    frozen: int
    compute: int
    compute_name: str

    @property
    def autocasts(self) -> bool:
        """Whether trained weights are cast as they are used."""
        return self.trainable != self.compute


TYPES: dict[Precision, DtypeBytes] = {
    "mixed": DtypeBytes(trainable=4, frozen=2, compute=2, compute_name="bfloat16"),
    "bf16": DtypeBytes(trainable=2, frozen=2, compute=2, compute_name="bfloat16"),
    "fp16": DtypeBytes(trainable=4, frozen=2, compute=2, compute_name="float16"),
    "fp32": DtypeBytes(trainable=4, frozen=4, compute=4, compute_name="float32"),
}

#: Where a tensor outside the blocks lies in a pipeline; a tied embedding lies at both ends.
Place = Literal["front", "back"]

#: NF4 (Dettmers et al., 2023): half a byte per element; double quantisation leaves one byte of
#: scale per block of 64. Not counted is a float32 per 256 of those, which every rank has of a whole
#: matrix.
NF4_BYTES = 0.5 + 1 / NF4_BLOCK


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One parameter.

    Attributes:
        rows: its first dim, along which it is sharded; of stacked experts their number.
        columns: elements per row.
        trained: it has a gradient.
        quantised: it is stored in NF4.
        packed: it is a stack of experts in NF4, or of their scales: its elements are bytes.
        last: of stacked experts, the last dim of each; 0 for what is no stack.
        ep: of stacked experts, among how many ranks all were dealt, of which these are one rank's.
        count: how many alike there are.
        cut: the dim that tensor parallelism slices, None for a tensor that every rank holds whole.
        place: the end of a pipeline that holds it, for tensors outside the blocks.
    """

    name: str
    rows: int
    columns: int = 1
    trained: bool = True
    quantised: bool = False
    packed: bool = False
    last: int = 0
    ep: int = 1
    count: int = 1
    cut: Cut | None = None
    place: Place = "front"

    @property
    def short(self) -> bool:
        """Whether 8-bit AdamW keeps its moments in 8 bits."""
        if self.last:
            return has_8bit_moments((self.rows, self.columns // self.last, self.last))
        return self.columns > 1 and has_8bit_moments((self.rows, self.columns))

    @property
    def elements(self) -> int:
        """Elements of all `count` tensors."""
        return self.count * self.rows * self.columns

    def element_bytes(self, types: DtypeBytes) -> float:
        """Bytes of one element in storage."""
        if self.quantised or self.packed:
            return 1 if self.packed else NF4_BYTES
        return types.trainable if self.trained else types.frozen

    def kept(self, *, degree: int, index: int, by_rows: bool = False) -> int:
        """Elements, of all `count` tensors, of one shard. Rows are cut as `torch.chunk` cuts;
        stacked experts as `dim_of_shard` says, or by their number too (`by_rows`)."""
        degree, index = max(1, degree // self.ep), index // self.ep
        if not by_rows and self.cut_inside(degree):
            return self.count * self.rows * self.columns // degree
        return self.count * self.columns * rows_of_shard(self.rows, degree=degree, index=index)

    def cut_inside(self, degree: int) -> bool:
        """Whether shards are parts of each stacked expert."""
        if not self.last or self.packed:
            return False
        return dim_of_shard((self.rows, self.columns // self.last, self.last), degree=degree) > 0

    def dealt(self, ep: int) -> Tensor:
        """What one rank of `ep` has of it: whole experts; of what is no stack, all."""
        return replace(self, rows=self.rows // ep, ep=ep) if self.last else self

    def factors(self, kept: int) -> int:
        """Row and column sums Adafactor keeps; for a vector, all (Shazeer and Stern, 2018)."""
        if self.columns == 1 or not kept:
            return kept
        if self.last:
            sums = self.rows * (self.columns // self.last + self.last)
            return -(-sums * kept // (self.rows * self.columns))
        return kept // self.columns + self.columns

    def state_bytes(self, optimizer: OptimizerName, kept: int, types: DtypeBytes, *, momentum: bool) -> int:
        """Bytes of optimizer states for so many elements of one of them: all, or those of a rank's
        shard. 8-bit moments have a float32 scale per block."""
        rule, width = OPTIMIZER_RULES[optimizer], float(types.trainable)
        if rule.in_8_bits:
            width = 1 + FLOAT32_BYTES / BLOCK_OF_8_BIT if self.short else FLOAT32_BYTES
        moments = rule.num_moments(momentum=momentum) * (self.factors(kept) if rule.factored else kept)
        return int(moments * width) + (FLOAT32_BYTES if rule.counts_steps else 0)

    def sliced(self, *, degree: int, index: int) -> Tensor:
        """The slice of one tensor-parallel rank, cut as `torch.chunk` cuts."""
        if degree == 1 or self.cut is None:
            return self
        return replace(self, **{self.cut: rows_of_shard(getattr(self, self.cut), degree=degree, index=index)})
