"""Stacks of experts in 4 bits: each expert's matrix is quantised by itself, as bitsandbytes does a
matrix (NF4 with double quantisation), so that a rank quantises the experts that it keeps, and those
alone.

The stack is written out while its experts are at work; for backward autograd keeps its bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from shardwise.models.keys import ELEMENTS, SCALES
from shardwise.models.nf4 import dequantised_blocks, levels_of, quantised_blocks
from shardwise.models.routing import mixtures
from shardwise.spec.support.rows import NF4_BLOCK, nf4_scale_bytes

#: Elements that are written out at once: kernels count them in 32 bits.
_AT_ONCE = 2**30


@dataclass(frozen=True, kw_only=True)
class NF4Stack:
    """How a parameter [experts, rows, columns] lies in two: its elements uint8 [experts, rows *
    columns / 2], and bytes [experts, n] that are, of each expert, float32 levels and then uint8
    scales. `shape`: of one expert's matrix; `dtype`: in which it is computed with."""

    name: str
    shape: tuple[int, int]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Elements of one expert's matrix."""
        return self.shape[0] * self.shape[1]

    def quantise(self, matrices: Iterator[torch.Tensor] | Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Elements and scales of experts' matrices [rows, columns], asked for one at a time."""
        parts = [quantised_blocks(matrix.flatten(), dtype=self.dtype) for matrix in matrices]
        scales = [torch.cat([levels.view(torch.uint8), scales.flatten()]) for _, scales, levels in parts]
        return torch.stack([elements.flatten() for elements, _, _ in parts]), torch.stack(scales)

    def quantise_live(self, whole: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Elements and scales of a parameter [experts, rows, columns]; empty on the meta device."""
        if whole.device.type != "meta":
            return self.quantise([*whole])
        elements, scales = (
            torch.empty(len(whole), width, dtype=torch.uint8, device="meta")
            for width in (self.size // 2, nf4_scale_bytes(self.size))
        )
        return elements, scales

    @torch.no_grad()
    def written_out(self, elements: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """The matrices [experts, rows, columns] of some experts' bytes."""
        some = max(1, _AT_ONCE // self.size)
        found = [self._written_out(*part) for part in zip(elements.split(some), scales.split(some), strict=True)]
        return found[0] if len(found) == 1 else torch.cat(found)

    def _written_out(self, elements: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        blocks = self.size // NF4_BLOCK
        of_levels = scales.shape[1] - blocks
        # A clone begins where four bytes are a float32.
        stored = scales[:, :of_levels].flatten().clone().view(torch.float32).view(len(scales), -1)
        levels = levels_of(stored, blocks=blocks)
        # By blocks: on processors bitsandbytes (0.50) makes other numbers of rows shorter than one.
        shape = (len(elements) * blocks, NF4_BLOCK)
        made = dequantised_blocks(elements, scales[:, of_levels:], levels, shape=shape, dtype=self.dtype)
        return made.view(len(elements), *self.shape)


def quantise_experts(model: nn.Module, *, dtype: torch.dtype) -> None:
    """Replaces a model's frozen stacks of experts that have whole blocks of 64, with or without
    adapters, by bytes: of what they hold, or on the meta device none yet. Computes in `dtype`."""
    for outer in (mixture.experts for mixture in mixtures(model)):
        held = innermost(outer)
        stacks = [
            NF4Stack(name=name, shape=(parameter.shape[1], parameter.shape[2]), dtype=dtype)
            for name, parameter in stacks_of(held)
            if not parameter.requires_grad
        ]
        for stack in stacks:
            whole = cast(nn.Parameter, held._parameters.pop(stack.name)).detach()
            for end, made in zip((ELEMENTS, SCALES), stack.quantise_live(whole), strict=True):
                held.register_parameter(f"{stack.name}{end}", nn.Parameter(made, requires_grad=False))
        if stacks:
            vars(held)["nf4_stacks"] = stacks
            outer.forward = partial(_written_out_within, outer.forward, held)


def stacks_of(held: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Parameters of a module of experts to be quantised: a matrix per expert, of whole blocks."""
    own = ((name, parameter) for name, parameter in held._parameters.items() if parameter is not None)
    return [(name, p) for name, p in own if p.ndim == 3 and p[0].numel() % NF4_BLOCK == 0]


def innermost(experts: nn.Module) -> nn.Module:
    """The module of experts itself, inside of the adapters that PEFT put around it."""
    while isinstance(inner := getattr(experts, "base_layer", None), nn.Module):
        experts = inner
    return experts


def experts_and_back(model: nn.Module, *, dtype: torch.dtype) -> None:
    """Puts what training computes with, in `dtype`, in the place of a model's stacks of experts."""
    for mixture in mixtures(model):
        for name, whole in stacks_of(innermost(mixture.experts)):
            stack = NF4Stack(name=name, shape=(whole.shape[1], whole.shape[2]), dtype=dtype)
            for matrix in whole.data:
                matrix.copy_(stack.written_out(*stack.quantise([matrix]))[0])


def stack_named(module: nn.Module, attribute: str) -> NF4Stack | None:
    """The stack whose elements a module holds under the name of an attribute."""
    stacks: list[NF4Stack] = getattr(module, "nf4_stacks", [])
    return next((stack for stack in stacks if attribute == f"{stack.name}{ELEMENTS}"), None)


def _written_out_within(forward: Callable[..., Any], held: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """A forward in which the module that `held` the bytes has its stacks as parameters."""
    stacks = cast(list[NF4Stack], cast(Any, held).nf4_stacks)
    packed = {one.name: (getattr(held, one.name + ELEMENTS), getattr(held, one.name + SCALES)) for one in stacks}
    wide = {one.name: nn.Parameter(one.written_out(*packed[one.name]), requires_grad=False) for one in stacks}
    held._parameters.update(wide)
    kept = {_storage(wide[one.name]): _Bytes(one, *packed[one.name]) for one in stacks}
    try:
        with _kept_as_bytes(kept):
            return forward(*args, **kwargs)
    finally:
        for name in wide:
            held._parameters.pop(name, None)


class _Bytes(NamedTuple):
    stack: NF4Stack
    elements: torch.Tensor
    scales: torch.Tensor


class _View(NamedTuple):
    """A view of a stack that is to be written out again: of which bytes, and its place there."""

    of: _Bytes
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def made(self) -> torch.Tensor:
        """Of the experts that it lies in alone."""
        each = self.of.stack.size
        first, last = self.offset, self.offset
        last += sum((size - 1) * stride for size, stride in zip(self.size, self.stride, strict=True))
        experts = slice(first // each, last // each + 1)
        wide = self.of.stack.written_out(self.of.elements[experts], self.of.scales[experts])
        return wide.as_strided(self.size, self.stride, self.offset - experts.start * each)


@contextmanager
def _kept_as_bytes(kept: dict[int, _Bytes]) -> Iterator[None]:
    """Within it autograd keeps views of stacks as their bytes, and all else as the hooks around it
    say: those of recomputation and of what waits in host memory."""
    autograd: Any = torch._C
    around: Any = autograd._autograd._top_saved_tensors_default_hooks(False)
    pack, unpack = around or (lambda tensor: tensor,) * 2

    def to_bytes(tensor: torch.Tensor) -> Any:
        found = kept.get(_storage(tensor))
        if found is None:
            return pack(tensor)
        return _View(found, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def from_bytes(saved: Any) -> torch.Tensor:
        return saved.made() if isinstance(saved, _View) else unpack(saved)

    with torch.autograd.graph.saved_tensors_hooks(to_bytes, from_bytes):
        yield


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
