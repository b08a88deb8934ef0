"""Frozen linear layers, weights in 4 bits: NF4 with double quantisation (Dettmers et al., 2023).

bitsandbytes quantises each matrix as a whole, so that every layout holds parts of one quantisation:
what it stores is kept in rows, which tensor parallelism slices and FSDP2 shards as it does any
other weight.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardwise.errors import UnsupportedError
from shardwise.models.wrapper import find_inside
from shardwise.spec.layout.axes import rows_of_parts
from shardwise.spec.support.rows import NF4_BLOCK, NF4_GROUP

#: Elements that are quantised at once.
_AT_ONCE = 2**20


class NF4Linear(nn.Linear):
    """A linear layer without a gradient of its weight, of which the whole exists only while it is
    used. `weight`: uint8 [rows, columns / 2], two elements in a byte, as bitsandbytes packs them;
    `scales`: uint8 [rows, columns / 64], an index into a table of scales for each block; `levels`:
    float32 [groups + 1], what each 256 scales are multiplied by, and last what is added to all."""

    def __init__(self, linear: nn.Linear, *, dtype: torch.dtype) -> None:
        """Stands in for `linear`, which is on the meta device; computes in `dtype`."""
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.dtype = linear.in_features, linear.out_features, dtype
        # Where a block goes over the end of a row, each is a row of its own.
        self._aligned = linear.in_features % NF4_BLOCK == 0
        columns = linear.in_features // NF4_BLOCK if self._aligned else 1
        rows = linear.weight.numel() // NF4_BLOCK // columns
        self._blocks = (rows, columns)
        self.weight = _bytes(rows, columns * NF4_BLOCK // 2)
        self.scales = _bytes(rows, columns)
        self.bias = linear.bias
        self.register_buffer("levels", torch.zeros(-(-rows * columns // NF4_GROUP) + 1), persistent=False)
        self._here = [(slice(None), slice(None))]

    def take_slice(self, dim: int, *, index: int, degree: int, parts: Sequence[int] = ()) -> None:
        """Slices weight and scales: `index` of `degree`, by rows (0) or columns (1) of blocks;
        `parts`: of rows that are sliced part by part."""
        size, left = divmod(self.scales.shape[dim], degree)
        if left or not self._aligned:
            raise UnsupportedError(
                f"tp = {degree} would cut blocks of {NF4_BLOCK} quantised elements of a matrix of "
                f"{self.out_features} x {self.in_features}; use fsdp"
            )
        spans = rows_of_parts((parts or (size * degree,), degree), index * size, size)
        here = [slice(first, first + count) for first, count in spans]
        self._here = [(slice(None), span) if dim else (span, slice(None)) for span in here]

    def quantise(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """The whole weight and scales for a matrix [out_features, in_features]; sets the levels."""
        weight, scales, self.levels = quantised_blocks(matrix.flatten(), dtype=self.dtype)
        rows, _ = self._blocks
        return weight.view(rows, -1), scales.view(rows, -1)

    def dequantised(self, weight: Tensor, scales: Tensor) -> Tensor:
        """The matrix [out_features, in_features] or this rank's slice, of its weight and scales."""
        rows, columns = self._blocks
        levels, offset = levels_of(self.levels, blocks=rows * columns)
        found = [levels.view(rows, columns)[span] for span in self._here]
        here = torch.cat(found) if found[1:] else found[0], offset
        shape = (len(scales), scales.shape[1] * NF4_BLOCK) if self._aligned else (self.out_features, self.in_features)
        return dequantised_blocks(weight, scales, here, shape=shape, dtype=self.dtype)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - nn.Linear's name
        """Of activations [..., in_features]."""
        result = cast(Tensor, _Product.apply(input.to(self.dtype), self, self.weight, self.scales))
        return result if self.bias is None else result + self.bias.to(result.dtype)


def quantised_blocks(matrix: Tensor, *, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Of a flat matrix, as bitsandbytes quantises it in `dtype`: its elements, two in a byte; an
    index into a table of scales for each block; and their levels, as NF4Linear has them."""
    library = _bitsandbytes()
    # Some blocks at a time: on processors bitsandbytes holds several float32 copies of its input.
    options = {"blocksize": NF4_BLOCK, "quant_type": "nf4"}
    parts = [library.quantize_4bit(part.to(dtype), **options) for part in matrix.split(_AT_ONCE)]
    largest = torch.cat([state.absmax for _, state in parts])
    offset = largest.mean()
    scales, state = library.quantize_blockwise(largest - offset, blocksize=NF4_GROUP)
    return torch.cat([part for part, _ in parts]), scales, torch.cat([state.absmax, offset.reshape(1)])


def levels_of(levels: Tensor, *, blocks: int) -> tuple[Tensor, Tensor]:
    """Of levels [..., groups + 1]: each block's [..., blocks], and all blocks' offset [..., 1]."""
    return levels[..., :-1].repeat_interleave(NF4_GROUP, -1)[..., :blocks], levels[..., -1:]


def dequantised_blocks(
    elements: Tensor, scales: Tensor, levels: tuple[Tensor, Tensor], *, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    """The tensor of a shape, of its packed elements and its blocks' scales, times their levels."""
    largest = _scales(scales.device)[scales.int()] * levels[0] + levels[1]
    _bitsandbytes()
    dequantise = torch.ops.bitsandbytes.dequantize_4bit
    return dequantise(elements.reshape(-1, 1), largest.flatten(), NF4_BLOCK, "nf4", shape, dtype)


class _Product(torch.autograd.Function):
    """`x W^T`, which keeps the packed weight for backward and dequantises it once more there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: NF4Linear, *packed: Tensor) -> Tensor:
        ctx.save_for_backward(*packed)
        ctx.layer = layer
        return F.linear(x, layer.dequantised(*packed))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        return gradient @ ctx.layer.dequantised(*ctx.saved_tensors), None, None, None


def quantise_linear_layers(model: nn.Module, *, dtype: torch.dtype) -> None:
    """On the meta device, replaces an adapted model's linear layers but the head by NF4Linear, as
    transformers does for bitsandbytes. Raises UnsupportedError: none, or one not quantisable."""
    found = quantised_layers(model)
    if not found:
        raise UnsupportedError("the model has no linear layer that qlora could quantise; use method: lora")
    for name, linear in found.items():
        trained, shape = linear.weight.requires_grad, tuple(linear.weight.shape)
        if trained or linear.weight.numel() % NF4_BLOCK:
            what = "it is trained as a copy" if trained else f"it has no whole blocks of {NF4_BLOCK}"
            raise UnsupportedError(f"qlora cannot quantise {name}, a matrix of {shape}: {what}; use method: lora")
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, NF4Linear(linear, dtype=dtype))


def quantised_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers of a model, with adapters or without, that are quantised, by name: all but
    the head; of a model of more than text, those of its language model."""
    adapted: Any = model
    head, inside = set(adapted.get_output_embeddings().modules()), find_inside(model)
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Linear and module not in head and ".lora_" not in name
        if inside is None or inside.holds(f"{name}.")
    }


def quantised_and_back(matrix: Tensor, *, dtype: torch.dtype) -> Tensor:
    """What training computes with in the place of a matrix, in `dtype`."""
    rows, columns = matrix.shape
    layer = NF4Linear(nn.Linear(columns, rows, bias=False, device="meta"), dtype=dtype)
    return layer.dequantised(*layer.quantise(matrix))


def quantisation_of(model: nn.Module, *, beside: Sequence[str] = ()) -> dict[str, Any] | None:
    """What config.json says of a model that transformers has quantised alike; None where no layer
    is quantised. `beside`: modules beside its language model, which stay as they are."""
    from transformers import BitsAndBytesConfig

    layer = next((module for module in model.modules() if isinstance(module, NF4Linear)), None)
    if layer is None:
        return None
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=layer.dtype,
        llm_int8_skip_modules=["lm_head", *beside] if beside else None,
    ).to_dict()


def _bytes(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(rows, columns, dtype=torch.uint8, device="meta"), requires_grad=False)


@lru_cache
def _scales(device: torch.device) -> Tensor:
    """The table of scales (Dettmers et al., 2022): float32 [256]."""
    return _bitsandbytes().create_dynamic_map().to(device)


def _bitsandbytes() -> Any:
    import bitsandbytes.functional

    return bitsandbytes.functional
