"""Activation checkpointing, per block; and what blocks save, kept in host memory from forward to
backward (`gradient_checkpointing: offloaded` and `selective_offloaded`).

Checkpointing is non-reentrant, because the reentrant kind needs inputs that require gradients,
which frozen embeddings do not give. It wraps `forward`, so that parameters keep their names and
weights are gathered before recomputation.

What goes to the host leaves the GPU on a stream of its own while the next block computes, and comes
back while the backward of the block behind it computes, so that what two blocks saved is on the GPU
at a time. Without a GPU only the arithmetic is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from threading import local
from typing import Any, cast

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from shardwise.spec.layout.execution import Recompute

_aten = torch.ops.aten

#: What selective checkpointing saves, beside the products that `_policy` names: attention, and what
#: collectives brought from other ranks, as torchtitan does.
_SAVED = {
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
    torch.ops._c10d_functional.all_to_all_single.default,
}
_PRODUCTS = {_aten.mm.default, _aten.addmm.default}


def apply_recompute(blocks: Iterable[nn.Module], kind: Recompute) -> None:
    """Makes each block save only its inputs, or if `selective` also some products and attention."""
    for block in blocks if kind != "none" else ():
        block.forward = partial(_full if kind == "full" else _selective, block.forward)


_now = local()


def is_again() -> bool:
    """Whether this thread computes a block again, for its backward."""
    return getattr(_now, "again", False)


@contextmanager
def _again() -> Iterator[None]:
    before, _now.again = is_again(), True
    try:
        yield
    finally:
        _now.again = before


def _full(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_compiling():  # which takes contexts that choose operators, and no others
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), _again()), **kwargs)


def _selective(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    contexts = partial(create_selective_checkpoint_contexts, _policy)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def _policy(_context: Any, op: Any, *args: Any, **_: Any) -> CheckpointPolicy:
    """Saves attention, and products that make a row no wider than they read: of a Llama all but
    gate and up, which have most bytes, and save least time for each."""
    if op.namespace == "shardwise":  # a sum of products (`methods/lora_products.py`), the first by the frozen matrix
        is_saved = _narrows(args[1][0])
    elif op in _PRODUCTS:
        is_saved = _narrows(args[-1])
    else:
        is_saved = op in _SAVED or op.namespace == "torch_attn"  # varlen_attn, which is imported where it is used
    return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE


def _narrows(right: torch.Tensor) -> bool:
    width, made = right.shape
    # Bytes kept grow with what a product makes, seconds saved with what it reads as well.
    return bool(made <= width)


def keep_saved_on_host(blocks: Iterable[nn.Module], device: torch.device) -> None:
    """Makes blocks, called with their input first, keep what they save in host memory, except
    weights and what all blocks read. Blocks recompute part of their forward, in order of calls."""
    kept = SavedOnHost(device)
    for index, block in enumerate(blocks):
        block.forward = partial(_call, kept, index == 0, block.forward)


def _call(kept: SavedOnHost, is_first: bool, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    hidden, *others = args
    shared = {one.data_ptr() for one in tree_leaves((others, kwargs)) if isinstance(one, torch.Tensor)}
    kept.begin(hidden, shared, is_first=is_first)
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, kept.unpack):
        return forward(*args, **kwargs)


@dataclass(eq=False)
class _Saved:
    """What a block saved, in host memory. `before`: that of the block before, next in backward.
    `here`: it on the device, while it leaves or arrives; `moved`: when the copies are done."""

    before: _Saved | None
    host: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    here: list[torch.Tensor | None] = field(default_factory=list[torch.Tensor | None])
    moved: torch.Event | None = None


class SavedOnHost:
    """Moves what a stage's blocks save, by the same two hooks: compiled blocks share a graph."""

    def __init__(self, device: torch.device) -> None:
        self.pack, self.unpack = self._pack, self._unpack
        self._device, on_gpu = device, device.type == "cuda"
        self._out, self._back = (torch.cuda.Stream(device) if on_gpu else None for _ in range(2))
        self._now = _Saved(None)
        self._leaving: _Saved | None = None
        self._coming: _Saved | None = None
        self._last: _Saved | None = None
        self._shared: set[int] = set()
        self._tokens = 0

    def begin(self, hidden: torch.Tensor, shared: set[int], *, is_first: bool) -> None:
        """Says what the next block is called with, and where data it shares with others lies."""
        self._drop_unused()
        self._last = None if is_first else self._last
        self._now = _Saved(self._last)
        self._shared, self._tokens = shared, hidden.shape[:-1].numel()

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | tuple[_Saved, int]:
        of_tokens = tensor.is_floating_point() and tensor.numel() >= self._tokens  # not the state of a generator
        # Rotary tables and masks are saved by every block: one copy stays on the GPU for all.
        if isinstance(tensor, nn.Parameter) or not of_tokens or tensor.data_ptr() in self._shared:
            return tensor
        if torch.empty_like(tensor, device="meta").stride() != tensor.stride():
            return tensor  # a part of something larger
        self._leave(tensor.detach(), torch.empty_like(tensor, device="cpu", pin_memory=self._out is not None))
        return self._now, len(self._now.host) - 1

    def _leave(self, tensor: torch.Tensor, host: torch.Tensor) -> None:
        """Starts a copy to the host; frees what the block before saved, still being copied."""
        saved = self._last = self._now
        saved.host.append(host)
        if self._out is None:
            host.copy_(tensor)
            return
        saved.here.append(tensor)
        self._move(saved, self._out, [(host, tensor)])
        # The block before had this one's time for its copies, so that this wait is short.
        if self._leaving is not None and self._leaving is not saved:
            self._wait(self._leaving)
            self._leaving.here = [None] * len(self._leaving.host)
        self._leaving = saved

    def _move(self, saved: _Saved, stream: torch.cuda.Stream, copies: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Starts copies (to, from) once the computation so far is done with the memory of both."""
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for to, source in copies:
                to.copy_(source, non_blocking=True)
            saved.moved = stream.record_event()

    def _wait(self, saved: _Saved) -> None:
        """Makes what is computed next wait for the copies under way; the host does not."""
        if saved.moved is not None:
            torch.cuda.current_stream(self._device).wait_event(saved.moved)
        saved.moved = None

    def _unpack(self, kept: torch.Tensor | tuple[_Saved, int]) -> torch.Tensor:
        if isinstance(kept, torch.Tensor):
            return kept
        saved, index = kept
        # The first tensor that a backward asks for starts the way back of the block before.
        before, saved.before = saved.before, None
        if self._last is saved:
            self._last = None
        tensor = self._arrived(saved, index)
        if before is not None:
            self._drop_unused()
            self._coming = before
            self._fetch(before)
        return tensor

    def _drop_unused(self) -> None:
        """Frees what came unasked, as of a block that trains nothing, once its copies are done."""
        if self._coming is not None:
            self._wait(self._coming)
        self._coming = None

    def _arrived(self, saved: _Saved, index: int) -> torch.Tensor:
        """A tensor on the device, where it will be when what is computed next begins."""
        if self._back is None:
            return saved.host[index]
        self._leaving = None if self._leaving is saved else self._leaving
        self._coming = None if self._coming is saved else self._coming
        if saved.here[index] is None:
            self._fetch(saved)
        self._wait(saved)
        here, saved.here[index] = saved.here[index], None
        return cast(torch.Tensor, here)

    def _fetch(self, saved: _Saved) -> None:
        """Starts the way back of what is not on the device."""
        missing = [index for index, here in enumerate(saved.here) if here is None]
        if self._back is not None and missing:
            for index in missing:
                saved.here[index] = torch.empty_like(saved.host[index], device=self._device)
            copies = [(cast(torch.Tensor, saved.here[index]), saved.host[index]) for index in missing]
            self._move(saved, self._back, copies)
