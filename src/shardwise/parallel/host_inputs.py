"""Inputs of recomputed blocks, kept in host memory from forward to backward (`gradient_checkpointing: offloaded`).

Each leaves the GPU on a stream of its own while its block computes, and comes back while the backward of the block
behind it computes, so that two are on the GPU at a time. Without a GPU the copy stays where it is: the arithmetic is
the same, and nothing is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn


def keep_inputs_on_host(blocks: Iterable[nn.Module], device: torch.device) -> None:
    """Makes each block, called with its input first, keep that input in host memory. The blocks recompute their
    forward, and stand in the order in which they are called."""
    kept = HostInputs(device)
    for index, block in enumerate(blocks):
        block.forward = partial(_call, kept, index == 0, block.forward)


def _call(kept: HostInputs, is_first: bool, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    kept.expect(args[0], is_first=is_first)
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, kept.unpack):
        return forward(*args, **kwargs)


@dataclass(eq=False)
class _Kept:
    """An input in host memory. `before`: that of the block before, which backward asks for next. `here`: it on the
    device, while it leaves or arrives; `moved`: when the copy under way is done."""

    host: torch.Tensor
    before: _Kept | None
    here: torch.Tensor | None = None
    moved: torch.Event | None = None


class HostInputs:
    """Moves the inputs of a stage's blocks, all with the same two hooks, so that compiled blocks share a graph."""

    def __init__(self, device: torch.device) -> None:
        self.pack, self.unpack = self._pack, self._unpack
        self._device = device
        on_gpu = device.type == "cuda"
        self._out = torch.cuda.Stream(device) if on_gpu else None
        self._back = torch.cuda.Stream(device) if on_gpu else None
        self._leaving: _Kept | None = None
        self._expected: torch.Tensor | None = None
        self._last: _Kept | None = None

    def expect(self, hidden: torch.Tensor, *, is_first: bool) -> None:
        """Says which tensor the next block keeps in host memory."""
        self._expected = hidden
        if is_first:
            self._last = None

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | _Kept:
        expected = self._expected
        if expected is None or tensor.data_ptr() != expected.data_ptr() or tensor.shape != expected.shape:
            return tensor
        self._expected = None
        self._last = kept = self._leave(tensor.detach())
        return kept

    def _leave(self, tensor: torch.Tensor) -> _Kept:
        if self._out is None:
            return _Kept(tensor.clone(), self._last)
        kept = _Kept(torch.empty_like(tensor, device="cpu", pin_memory=True), self._last, here=tensor)
        self._out.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._out):
            kept.host.copy_(tensor, non_blocking=True)
            kept.moved = self._out.record_event()
        if self._leaving is not None:
            self._settle(self._leaving)
        self._leaving = kept
        return kept

    def _settle(self, kept: _Kept) -> None:
        """Makes what is computed next wait for the copy under way, and lets go of the tensor on the device."""
        if kept.moved is not None:
            torch.cuda.current_stream(self._device).wait_event(kept.moved)
        kept.here = kept.moved = None

    def _unpack(self, kept: torch.Tensor | _Kept) -> torch.Tensor:
        if isinstance(kept, torch.Tensor):
            return kept
        before, kept.before = kept.before, None
        if self._last is kept:
            self._last = None
        tensor = self._arrived(kept)
        if before is not None:
            self._fetch(before)
        return tensor

    def _arrived(self, kept: _Kept) -> torch.Tensor:
        """An input on the device, once its copy is done; what is computed next waits for that, the host does not."""
        if self._back is None:
            return kept.host
        if self._leaving is kept:
            self._leaving = None
        self._fetch(kept)
        here = kept.here
        assert here is not None  # noqa: S101
        self._settle(kept)
        return here

    def _fetch(self, kept: _Kept) -> None:
        """Starts the way back of what is not on the device."""
        if kept.here is not None or self._back is None:
            return
        kept.here = torch.empty_like(kept.host, device=self._device)
        # Its memory may be that of a tensor that the computation before still reads.
        self._back.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._back):
            kept.here.copy_(kept.host, non_blocking=True)
            kept.moved = self._back.record_event()
