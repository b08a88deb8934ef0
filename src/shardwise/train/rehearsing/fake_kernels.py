"""Kernels that transformers runs on a GPU where their package is installed, as a profile on tensors
without numbers sees them: what each gives, keeps for its backward, and works in there.

Read in the autograd functions of the packages, on 2026-11-28:

- causal_conv1d_fn (Dao-AILab/causal-conv1d, causal_conv1d_interface.py, `CausalConv1dFn`) keeps
  its input; the activation is made again.
- chunk_gated_delta_rule (fla-org/flash-linear-attention, fla/ops/gated_delta_rule/chunk.py,
  `ChunkGatedDeltaRuleFunction`) keeps copies of queries, keys (normalised, with their norms) and
  values, decays summed in float32, beta, and of each chunk of 64 tokens an inverse.

In backward stand, beside gradients of what was given, states of all chunks with their gradients,
and what is made again.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from shardwise.models.known_ahead import replaced

#: Tokens of a chunk of the gated delta rule.
_CHUNK = 64


class _Held(NamedTuple):
    """Shapes and types: what a kernel `gives`, `keeps` beside what it `read`, and `works` in."""

    gives: tuple[Any, torch.dtype]
    read: Tensor
    keeps: Sequence[tuple[Any, torch.dtype]] = ()
    works: Sequence[tuple[Any, torch.dtype]] = ()


def _convolution(hidden: Tensor, *_: Any, **__: Any) -> _Held:
    return _Held((hidden.shape, hidden.dtype), hidden)


def _delta_rule(query: Tensor, key: Tensor, value: Tensor, *_others: Any, beta: Tensor, **_: Any) -> _Held:
    c, (rows, length, heads, width) = value.dtype, value.shape
    states = (rows, -(-length // _CHUNK), heads, key.shape[-1], width), c
    keeps: list[tuple[Any, torch.dtype]] = [(one.shape, c) for one in (query, key, value)]
    keeps += [(one.shape[:-1], torch.float32) for one in (query, key, value)]  # two norms, decays
    keeps.append(((rows, length, heads, _CHUNK), c))
    of_key, of_value = ((rows, length, heads, key.shape[-1]), c), (value.shape, c)
    return _Held((value.shape, c), beta, keeps, [states, states, of_key, of_key, *[of_value] * 3])


#: Of each function of transformers' modelling code the package whose kernel takes its place, what
#: that holds, and whether it gives a state beside the result.
_KERNELS: dict[str, tuple[str, Callable[..., _Held], bool]] = {
    "causal_conv1d_fn": ("causal_conv1d", _convolution, False),
    "torch_chunk_gated_delta_rule": ("fla", _delta_rule, True),
}


@contextmanager
def kernels_of(blocks: Sequence[nn.Module], packages: Sequence[str]) -> Iterator[list[str]]:
    """Puts what stands for the kernels of installed `packages` in the place of the functions that
    blocks call. Gives the packages of those that run, filled as they do."""
    ran: list[str] = []
    codes = {type(module).__module__ for block in blocks for module in block.modules()}
    stand_ins = [
        (code, name, partial(_run, ran, package, held, with_state))
        for code in map(sys.modules.__getitem__, codes)
        for name, (package, held, with_state) in _KERNELS.items()
        if package in packages and hasattr(code, name)
    ]
    with replaced(*stand_ins):
        yield ran


def _run(ran: list[str], package: str, held: Callable[..., _Held], with_state: bool, *args: Any, **kwargs: Any) -> Any:
    if package not in ran:
        ran.append(package)
    given = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
    made = cast(Any, _Kernel).apply(held(*args, **kwargs), *given)
    return (made, None) if with_state else made


class _Kernel(torch.autograd.Function):
    """Keeps what a kernel keeps, and makes what it makes."""

    @staticmethod
    def forward(ctx: Any, held: _Held, *given: Tensor) -> Tensor:
        ctx.works, ctx.given = held.works, [(one.shape, one.dtype) for one in given]
        ctx.save_for_backward(held.read, *(held.read.new_empty(shape, dtype=dtype) for shape, dtype in held.keeps))
        shape, dtype = held.gives
        return held.read.new_empty(shape, dtype=dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        works = [gradients[0].new_empty(shape, dtype=dtype) for shape, dtype in ctx.works]
        made = [gradients[0].new_empty(shape, dtype=dtype) for shape, dtype in ctx.given]
        del works
        return None, *made
