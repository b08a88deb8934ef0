"""Weights published in fewer bits, widened as they are read: MXFP4 blocks, and FP8 with scales.

Elements and scales, two keys of a file, are one tensor here; of a window its blocks alone are read.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import torch

from shardwise.catalog.stated import published_as, stated_quantisation
from shardwise.errors import ModelError

Shape = tuple[int, ...]


class StoredFiles(Protocol):
    """Tensors as they stand in files."""

    def stored_shape(self, key: str) -> Shape:
        """Of the tensor of a key."""
        ...

    def stored_type(self, key: str) -> str:
        """What safetensors calls the type of its elements."""
        ...

    def stored_part(self, key: str, part: tuple[slice, ...]) -> torch.Tensor:
        """A part of it."""
        ...


#: Elements of E2M1: the values of four bits, the sign first (OCP Microscaling Formats, 2023).
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1 += tuple(-value for value in _E2M1)
#: What is added to the exponent of a scale that is a power of two in a byte.
_BIAS = 127


def _unpacked(pairs: torch.Tensor) -> torch.Tensor:
    """float32 [..., 2 n] of bytes [..., n], each with two elements of E2M1, the low half first."""
    halves = pairs.contiguous().view(torch.uint8)
    codes = torch.stack([halves & 15, halves >> 4], dim=-1).flatten(-2)
    return torch.tensor(_E2M1)[codes.int()]


class MXFP4(NamedTuple):
    """Blocks [experts, rows, groups, 16] of two elements a byte, with power of two scales [experts,
    rows, groups]: a weight [experts, 32 groups, rows], as in gpt-oss. By the keys of both."""

    elements: str
    scales: str

    def shape(self, files: StoredFiles) -> Shape:
        """Of the widened weight. Raises ModelError: blocks and scales do not go together."""
        experts, *rest = found = files.stored_shape(self.elements)
        if len(found) != 4 or files.stored_shape(self.scales) != found[:3]:
            message = (
                f"{self.scales} has the shape {files.stored_shape(self.scales)}, which is not that of the blocks "
                f"{self.elements}, {found}; download the model again"
            )
            raise ModelError.at(self.elements, message)
        rows, groups, pairs = rest
        return experts, 2 * groups * pairs, rows

    def read(self, files: StoredFiles, *, offsets: Shape, lengths: Shape) -> torch.Tensor:
        """The part from `offsets` on, `lengths` long, in bfloat16, which holds every product."""
        wide = 2 * files.stored_shape(self.elements)[-1]
        (expert, column, row), (experts, columns, rows) = offsets, lengths
        groups = slice(column // wide, -(-(column + columns) // wide))
        made = torch.empty(lengths, dtype=torch.bfloat16)
        for index in range(experts):
            part = slice(expert + index, expert + index + 1), slice(row, row + rows), groups
            values = _unpacked(files.stored_part(self.elements, (*part, slice(0, wide // 2)))[0])
            exponents = files.stored_part(self.scales, part)[0].int() - _BIAS
            found = torch.ldexp(values, exponents.unsqueeze(-1)).flatten(1)
            begin = column - groups.start * wide
            made[index] = found[:, begin : begin + columns].T
        return made


class FP8(NamedTuple):
    """Elements [..., rows, columns] in 8 bits, or two of E2M1 in a byte, and a scale per block, by
    the keys of both. `block`: its rows and columns; the last of either may be shorter."""

    elements: str
    scales: str
    block: tuple[int, int]

    def shape(self, files: StoredFiles) -> Shape:
        """Of the widened weight. Raises ModelError: there are not as many scales as blocks."""
        *rest, columns = files.stored_shape(self.elements)
        shape = (*rest, columns * self._elements_a_byte(files))
        self._blocks(files, shape)
        return shape

    def read(self, files: StoredFiles, *, offsets: Shape, lengths: Shape) -> torch.Tensor:
        """The part from `offsets` on, `lengths` long, in float32, as the products are."""
        rows, columns = self._blocks(files, self.shape(files))
        (row, column), (count, width) = offsets[-2:], lengths[-2:]
        around = tuple(slice(at, at + size) for at, size in zip(offsets[:-2], lengths[:-2], strict=True))
        fitting = self._elements_a_byte(files)
        begin, end = column // fitting, -(-(column + width) // fitting)
        part = (*around, slice(row, row + count), slice(begin, end))
        made = files.stored_part(self.elements, part)
        made = made.float() if fitting == 1 else _unpacked(made)[..., column - begin * fitting :][..., :width]
        of_columns = torch.arange(column, column + width) // columns
        scales = self._all_scales(files)[around][..., row // rows : -(-(row + count) // rows), :][..., of_columns]
        if rows == 1:
            return made * scales
        for index in range(scales.shape[-2]):
            first = max(0, (row // rows + index) * rows - row)
            made[..., first : (row // rows + index + 1) * rows - row, :] *= scales[..., index : index + 1, :]
        return made

    def _blocks(self, files: StoredFiles, shape: Shape) -> tuple[int, int]:
        """Rows and columns of a block: as stated; of scales that are others, evenly."""
        stored = (1, 1, *files.stored_shape(self.scales))[-2:]
        found = tuple(map(_block, shape[-2:], stored, self.block))
        if None in found:
            message = (
                f"{self.scales} has {stored[0]} x {stored[1]} scales for {shape[-2]} x {shape[-1]} elements; config."
                f"json says that {' x '.join(map(str, self.block))} share one. Download the model again"
            )
            raise ModelError.at(self.elements, message)
        return found  # pyright: ignore[reportReturnType]

    def _elements_a_byte(self, files: StoredFiles) -> int:
        return 2 if files.stored_type(self.elements) in _PAIRS else 1

    def _all_scales(self, files: StoredFiles) -> torch.Tensor:
        """In float32 [..., rows of blocks, columns of blocks]; bytes are powers of two."""
        shape = files.stored_shape(self.scales)
        stored = files.stored_part(self.scales, tuple(slice(0, size) for size in shape))
        if stored.dtype == torch.uint8:
            return (stored.float() - _BIAS).exp2()
        return stored.float().reshape((1, 1, *shape)[-max(2, len(shape)) :])


#: A weight that is published in fewer bits: by which keys, and how it is widened.
Packed = MXFP4 | FP8


def _block(size: int, scales: int, stated: int) -> int | None:
    """Elements that share a scale; None where they do not add up."""
    if -(-size // stated) == scales:
        return stated
    return size // scales if scales and size % scales == 0 else None


def widened_by_transformers(config: dict[str, Any]) -> Any:
    """What `from_pretrained` is given to widen a folder's weights; None where they are floats."""
    from transformers.utils.quantization_config import FineGrainedFP8Config, Mxfp4Config

    stated = published_as(config)
    if stated == "fp8":
        return FineGrainedFP8Config(dequantize=True)
    return None if stated is None else Mxfp4Config(dequantize=True)


#: Types of FP8's elements: of 8 bits, and pairs of E2M1.
_BYTES, _PAIRS = ("F8_E4M3", "F8_E5M2"), ("I8", "U8")
#: How the key of a weight's scales ends -> how its own does.
_FP8_KEYS = ((r"_scale_inv$", ""), (r"\.qscale_weight$", ".weight"), (r"\.scale$", ".weight"))
#: Scales of activations, which nothing here is multiplied with.
_OF_ACTIVATIONS = re.compile(r"\.(activation_scale|input_scale|qscale_act)$")


def find_packed(
    config: dict[str, Any], keys: Iterable[str], type_of: Callable[[str], str]
) -> tuple[dict[str, Packed], set[str]]:
    """A folder's weights that are published in fewer bits, by their key once wide; and the keys
    that then have no weight of their own. `type_of`: the safetensors type of a key's elements."""
    stated, stored = published_as(config), set(keys)
    found: dict[str, Packed] = {}
    if stated == "mxfp4":
        for key in (key for key in stored if key.endswith("_blocks")):
            name = key.removesuffix("_blocks")
            if f"{name}_scales" in stored:
                found[name] = MXFP4(key, f"{name}_scales")
    elif stated == "fp8":
        rows, columns = stated_quantisation(config).get("weight_block_size") or (2**62, 2**62)
        for pattern, end in _FP8_KEYS:
            pairs = ((key, re.sub(pattern, end, key)) for key in stored if re.search(pattern, key))
            found |= {
                name: FP8(name, key, (rows, columns))
                for key, name in pairs
                if name in stored and type_of(name) in (*_BYTES, *_PAIRS)
            }
    gone = {key for packed in found.values() for key in packed[:2]} - found.keys()
    return found, gone | {key for key in stored if stated == "fp8" and _OF_ACTIVATIONS.search(key)}
