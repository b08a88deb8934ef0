"""Live storages of a training on fake tensors: what was allocated and freed, in order, and by whom.

A FakeTensor's storage has a size and no memory, and lives as long as the tensors that share it, as
a real one does.
"""

import sys
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, reduce
from types import CodeType
from typing import Any, Self

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from shardwise.parallel.ownership import local_part
from shardwise.train.precision import type_name

_aten, _prim = torch.ops.aten, torch.ops.prim

#: Collectives that gloo, which moves tensors between processors, makes a copy for: which argument.
_COPIED: dict[Any, int] = {
    torch.ops.c10d._allgather_base_.default: 0,
    torch.ops.c10d._reduce_scatter_base_.default: 1,
    torch.ops._c10d_functional.reduce_scatter_tensor.default: 0,
}

#: No part: DTensor asks what shape a result has, by tensors that it never has numbers for.
_ASKS = "shapes"

#: Part of a file's path -> part of a rank's memory, the first that fits; None looks further out.
_PARTS: tuple[tuple[str, str | None], ...] = (
    ("/shardwise/train/rehearsing/", None),
    ("/shardwise/train/cross_entropy.py", "logits"),
    ("/shardwise/train/optim.py", "temporary"),
    ("/shardwise/parallel/recompute.py", None),
    ("/shardwise/parallel/single_stage.py", "activations"),
    ("/shardwise/parallel/", "communication"),
    ("/shardwise/", "activations"),
    ("/torch/distributed/pipelining/", "activations"),
    *((f"/torch/distributed/tensor/{file}.py", _ASKS) for file in ("_op_schema", "_sharding_prop")),
    ("/torch/distributed/", "communication"),
    ("/torch/nn/parallel/", "communication"),
    ("/torch/optim/", "temporary"),
    ("/transformers/", "activations"),
    ("/peft/", "activations"),
)

#: Functions that make something else than the rest of their file: of the loss, and of the pipeline.
_FUNCTIONS = {
    "/shardwise/train/cross_entropy.py": {"_learn": "gradients", "forward": "activations"},
    "/shardwise/parallel/pipeline.py": dict.fromkeys(
        ("_backward", "_backward_input", "_backward_weight", "_forward"), "activations"
    ),
}


@dataclass(slots=True)
class Allocation:
    """One storage: its part of the planner's, the first tensor in it, who asked for it."""

    part: str
    maker: str
    shape: tuple[int, ...]
    dtype: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """Bytes that an allocation grew by, or shrank, and the instant at which it did."""

    allocation: Allocation
    delta: int
    instant: str


class Ledger(TorchDispatchMode):
    """To be entered inside a FakeTensorMode. What has real tensors alone is computed, on none of
    the counted memory; what would be read of a fake tensor is 1. `casts`: elementwise operators
    copy what is not in their common type, as on a processor; `copies`: gloo's of what it gathers
    and scatters; `instant`: what the training does, set from outside; `changes`: in order."""

    def __init__(self, *, casts: bool, copies: bool) -> None:
        super().__init__()
        self._casts, self._copies = casts, copies
        self.instant = "loading"
        self.is_on = False
        self.changes: list[Change] = []
        self._live: dict[int, tuple[Any, Allocation]] = {}
        self._passing: list[Allocation] = []
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> Self:
        """Also watches storages that are resized, as FSDP2 frees what it gathered."""
        resize, ledger = self._resize, self

        def resized(self: torch.UntypedStorage, size: int) -> Any:
            made = resize(self, size)
            if self._cdata in ledger._live:
                ledger._change(ledger._live[self._cdata][1], self.nbytes())
            return made

        torch.UntypedStorage.resize_ = resized
        self.is_on = True
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        torch.UntypedStorage.resize_ = self._resize
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _prim.device.default and type(args[0]) is FakeTensor:
            return args[0].fake_device  # asked for more often than anything is computed
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # a fake one would be another tensor
        kwargs = kwargs or {}
        if any(kind is DTensor for kind in types):
            return NotImplemented  # its local tensors come here by themselves
        # DDP writes its bucket order into an empty tensor of 32-bit numbers, and reads it back.
        indices = func is _aten.empty.memory_format and kwargs.get("dtype") == torch.int32
        fakes = any(issubclass(kind, FakeTensor) for kind in types)
        real = [] if fakes else [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        # Not on the meta device, from which parameters are made.
        if indices or (real and not any(tensor.is_meta for tensor in real)):
            with _disable_current_modes():
                return func(*args, **kwargs)
        if func is _aten._local_scalar_dense.default:
            return 1.0 if args[0].is_floating_point() else 1
        if self._casts and torch.Tag.pointwise in func.tags:
            self._cast(args, kwargs.get("out"))
        elif self._copies and func in _COPIED:
            self._pass(args[_COPIED[func]], args[_COPIED[func]].dtype)
        made = func(*args, **kwargs)
        for tensor in (made,) if isinstance(made, torch.Tensor) else tree_leaves(made):
            if isinstance(tensor, FakeTensor):
                self._note(tensor, func, args)
        while self._passing:
            self._change(self._passing.pop(), 0)
        return made

    def tag(self, tensors: Iterable[torch.Tensor], part: str) -> int:
        """Says of which part some tensors' storages are; returns bytes, each storage's once."""
        storages = {s._cdata: s.nbytes() for s in (local_part(tensor).untyped_storage() for tensor in tensors)}
        for key in storages:
            if key in self._live:
                self._live[key][1].part = part
        return sum(storages.values())

    def take_in(self, tensor: torch.Tensor, part: str, maker: str = "") -> None:
        """Counts a fake tensor's storage; without `maker`, one that no operator made."""
        allocation = Allocation(part, maker, tuple(tensor.shape), type_name(tensor.dtype))
        storage = tensor.untyped_storage()
        key = storage._cdata

        def drop(_: Any) -> None:
            self._change(self._live.pop(key)[1], 0)

        self._live[key] = (weakref.ref(storage, drop), allocation)
        self._change(allocation, storage.nbytes())

    def take_in_buffers(self, model: nn.Module, fakes: FakeTensorMode) -> None:
        """Makes a model's buffers fake, and counts them; views of them are no memory."""
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = made = fakes.from_tensor(buffer)
                    self.take_in(made, "weights")

    def _note(self, tensor: FakeTensor, func: Any, args: Any) -> None:
        part, maker = _maker() if tensor.untyped_storage()._cdata not in self._live else (_ASKS, "")
        if part != _ASKS:
            # A weight's copy, or that of a view of it, is autocast's.
            source = self._live.get(args[0].untyped_storage()._cdata) if func is _aten._to_copy.default else None
            is_cast = source is not None and source[1].part == "weights"
            self.take_in(tensor, "temporary" if is_cast else part, maker)

    def _cast(self, args: Any, out: torch.Tensor | None) -> None:
        """Counts copies of operands in the common type, which live as long as the operator."""
        given = [one for one in args if isinstance(one, torch.Tensor) and one.ndim and one.is_floating_point()]
        if out is None and len(given) < 2:
            return
        common = reduce(torch.promote_types, (one.dtype for one in given))
        for one in (*given, *(() if out is None else (out,))):
            if one.dtype != common:
                self._pass(one, common)

    def _pass(self, like: torch.Tensor, dtype: torch.dtype) -> None:
        """Counts a copy of a tensor in a type, until the operator at hand is done."""
        part, maker = _maker()
        if part != _ASKS:
            self._passing.append(Allocation(part, maker, tuple(like.shape), type_name(dtype)))
            self._change(self._passing[-1], like.numel() * dtype.itemsize)

    def _change(self, allocation: Allocation, now: int) -> None:
        if now != allocation.size:
            self.changes.append(Change(allocation, now - allocation.size, self.instant))
            allocation.size = now


def _maker() -> tuple[str, str]:
    """Who requests memory, (part, function): the nearest known library's function on the stack."""
    frame = sys._getframe(2)
    while frame is not None:
        known = _known(frame.f_code)
        if known is not None:
            return known
        frame = frame.f_back
    return "temporary", ""


@cache
def _known(code: CodeType) -> tuple[str, str] | None:
    path = code.co_filename.replace("\\", "/")
    part = next((part for piece, part in _PARTS if piece in path), None)
    if part is None:
        return None
    part = next((named.get(code.co_name, part) for file, named in _FUNCTIONS.items() if path.endswith(file)), part)
    for root in ("/shardwise/", "/torch/", "/transformers/", "/peft/"):
        if root in path:
            path = root.strip("/") + "/" + path.rpartition(root)[2]
    return part, f"{path.removesuffix('.py').replace('/', '.')}.{code.co_name}"
