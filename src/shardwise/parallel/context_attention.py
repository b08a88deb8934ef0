"""Attention of a rank's parts of rows: keys and values of the whole row come for some heads at a
time, and again in backward, so that a rank keeps its own parts alone.

Backward goes through the kernels' own, with the result and the log of the sums that forward kept.
PyTorch's for processors is causal for as many queries as keys: there a part is compared with what
lies before it, then with itself, and the two results are joined by the logs of their sums (Dao et
al., 2022). Where none of these kernels is for the inputs (masks on GPUs, float32 there, values of
another width), backward computes attention once more.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention.bias import causal_lower_right
from torch.utils._python_dispatch import _disable_current_modes

from shardwise.parallel.mesh import all_gather_single, reduce_scatter_single
from shardwise.spec.layout.execution import heads_at_once

_aten = torch.ops.aten
#: A result and the logs of its sums.
_Kept = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class RowParts:
    """Who holds which parts of a row (`parallel/context.py`). `index`: this rank's in the group."""

    group: dist.ProcessGroup
    degree: int
    index: int

    @property
    def held(self) -> list[int]:
        """The parts of all ranks, one rank after the other."""
        # An early part and a late one: a late query sees more keys, and all ranks work alike.
        return [part for rank in range(self.degree) for part in (rank, 2 * self.degree - 1 - rank)]

    @property
    def own(self) -> tuple[int, int]:
        """This rank's."""
        return self.index, 2 * self.degree - 1 - self.index

    def whole(self, mine: Tensor) -> Tensor:
        """[batch, heads, length, width] of whole rows, from every rank's parts."""
        halves = torch.stack(mine.chunk(2, 2))
        came = halves.new_empty((2 * self.degree, *halves.shape[1:]))
        all_gather_single(came, halves, group=self.group)
        del halves
        return torch.cat([came[self.held.index(part)] for part in range(2 * self.degree)], 2)

    def summed(self, parts: Tensor) -> Tensor:
        """This rank's two of the sum of all ranks' parts, which are in the order of `held`."""
        mine = parts.new_empty((2, *parts.shape[1:]))
        reduce_scatter_single(mine, parts, group=self.group)
        return mine


class _Keys(NamedTuple):
    """What one half of the queries is compared with, a mask, and where that half begins."""

    keys: Tensor
    values: Tensor
    seen: Tensor | None
    begin: int


#: Takes gradients of keys, and of values, from a place on.
_Add = Callable[[int, Tensor, Tensor], None]


class _Flash:
    """FlashAttention on GPUs: each query sees the keys up to its own place from the end."""

    def forward(self, query: Tensor, of: _Keys, scale: float) -> tuple[Tensor, Tensor | None]:
        out, logs, *_ = _aten._scaled_dot_product_flash_attention(query, of.keys, of.values, 0.0, True, scale=scale)
        return out, logs

    def backward(self, given: Tensor, query: Tensor, of: _Keys, kept: _Kept | None, scale: float, add: _Add) -> Tensor:
        if of.keys.shape[1] == 1 < query.shape[1]:
            # The kernel would make gradients of keys for each head of queries. Where one head of
            # keys is at work, rows are so long that a call for each is no cost.
            of_query = torch.empty_like(query)
            for head in range(query.shape[1]):
                here = slice(head, head + 1)
                there = None if kept is None else (kept[0][:, here], kept[1][:, here])
                of_query[:, here].copy_(self.backward(given[:, here], query[:, here], of, there, scale, add))
            return of_query
        lengths, none = (query.shape[2], of.keys.shape[2]), torch.zeros(2, dtype=torch.int64, device=query.device)
        inputs = given, query, of.keys, of.values, *(kept or ()), None, None, *lengths, 0.0, True, none[0], none[1]
        back = _aten._scaled_dot_product_flash_attention_backward(*inputs, scale=scale)
        add(0, back[1], back[2])
        return back[0]


class _OnProcessor:
    """PyTorch's for processors, over repeated heads of keys; unmasked in two pieces."""

    def _pieces(self, query: Tensor, of: _Keys) -> Iterator[tuple[int, Any, Any, dict[str, Any]]]:
        """Where each begins, its keys and values, and what else the kernel is told."""
        copies = query.shape[1] // of.keys.shape[1]
        keys, values = (one.repeat_interleave(copies, 1) if copies > 1 else one for one in (of.keys, of.values))
        if of.seen is not None:
            added = torch.zeros(of.seen.shape, dtype=query.dtype).masked_fill_(~of.seen, -torch.inf)
            yield 0, keys, values, {"dropout_p": 0.0, "is_causal": False, "attn_mask": added}
            return
        for first, end in ((0, of.begin), (of.begin, keys.shape[2])):
            if end > first:
                told = {"dropout_p": 0.0, "is_causal": first == of.begin}
                yield first, keys[:, :, first:end], values[:, :, first:end], told

    def forward(self, query: Tensor, of: _Keys, scale: float) -> tuple[Tensor, Tensor | None]:
        kernel = _aten._scaled_dot_product_flash_attention_for_cpu
        found = [kernel(query, k, v, scale=scale, **told) for _, k, v, told in self._pieces(query, of)]
        # Both pieces have a softmax of their own: the logs of their sums join them exactly.
        logs = torch.stack([one[1] for one in found]).logsumexp(0)
        made = sum(out * (log - logs).exp().unsqueeze(-1).to(out.dtype) for out, log in found)
        return (found[0][0] if len(found) == 1 else made), logs  # pyright: ignore[reportReturnType]

    def backward(self, given: Tensor, query: Tensor, of: _Keys, kept: _Kept | None, scale: float, add: _Add) -> Tensor:
        kernel = _aten._scaled_dot_product_flash_attention_for_cpu_backward
        of_query, heads = torch.zeros_like(query), of.keys.shape[1]
        alone = query.shape[1] == heads
        for first, keys, values, told in self._pieces(query, of):
            found = kernel(given, query, keys, values, *(kept or ()), scale=scale, **told)
            of_query += found[0]
            add(first, *(one if alone else one.unflatten(1, (heads, -1)).sum(2) for one in found[1:]))
            del found
        return of_query


class _AnyKernel:
    """Whatever PyTorch chooses, which is run once more for its backward."""

    def forward(self, query: Tensor, of: _Keys, scale: float) -> tuple[Tensor, Tensor | None]:
        with _disable_current_modes():  # selective recompute's cannot make a tensor of another class
            bias: Any = of.seen if of.seen is not None else causal_lower_right(query.shape[2], of.keys.shape[2])
        options: dict[str, Any] = {"scale": scale, "enable_gqa": query.shape[1] != of.keys.shape[1]}
        return F.scaled_dot_product_attention(query, of.keys, of.values, bias, **options), None

    def backward(self, given: Tensor, query: Tensor, of: _Keys, kept: _Kept | None, scale: float, add: _Add) -> Tensor:
        del kept
        with torch.enable_grad():
            asked, keys, values = (one.detach().requires_grad_() for one in (query, of.keys, of.values))
            made, _ = self.forward(asked, of._replace(keys=keys, values=values), scale)
        of_query, of_keys, of_values = torch.autograd.grad(made, (asked, keys, values), given)
        add(0, of_keys, of_values)
        return of_query


#: Attention of queries [batch, heads, part, width] up to the part's end. `forward` gives the
#: result, and the logs of its sums, [batch, heads, part], where backward takes them; `backward` the
#: gradient of the queries, and adds the others.
_Kernel = _Flash | _OnProcessor | _AnyKernel


def _kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> _Kernel:
    if query.shape[-1] == value.shape[-1] and query.device.type == "cpu":
        return _OnProcessor()
    flash = mask is None and query.shape[-1] % 8 == 0 and query.device.type == "cuda"
    grouped = query.shape[1] != key.shape[1]
    if flash and can_use_flash_attention(SDPAParams(query, key, value, None, 0.0, True, grouped)):
        return _Flash()
    return _AnyKernel()


def _groups(parts: RowParts, query: Tensor, key: Tensor, value: Tensor) -> Iterator[tuple[slice, slice]]:
    """Heads of queries and of keys that belong together, as many as come at once."""
    widths, heads = key.shape[-1] + value.shape[-1], key.shape[1]
    each, copies = key.shape[0] * key.shape[2] * parts.degree * widths * key.itemsize, query.shape[1] // heads
    step = heads_at_once(heads, bytes_of_one=each)
    for first in range(0, heads, step):
        here = slice(first, min(first + step, heads))
        yield slice(here.start * copies, here.stop * copies), here


def _whole(parts: RowParts, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of whole rows, which travel together."""
    keys, values = parts.whole(torch.cat([key, value], -1)).split([key.shape[-1], value.shape[-1]], -1)
    return keys, values


def _halves(parts: RowParts, keys: Tensor, values: Tensor, mask: Tensor | None) -> Iterator[tuple[slice, _Keys]]:
    """Where each of this rank's parts lies among its positions, and what it is compared with."""
    size = keys.shape[2] // (2 * parts.degree)
    for half, part in enumerate(parts.own):
        mine, until = slice(half * size, (half + 1) * size), (part + 1) * size
        seen = None if mask is None else mask[:, :, mine, :until]
        yield mine, _Keys(keys[:, :, :until], values[:, :, :until], seen, part * size)


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, parts: RowParts, scale: float | None
) -> Tensor:
    """From this rank's [batch, heads, length, width] to [batch, length, heads, width]. `mask`:
    [batch or 1, 1, length, whole length], keys that each query sees; None: up to its own."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return _Attend.apply(parts, scale, mask, query, key, value)  # pyright: ignore[reportReturnType]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, parts: RowParts, scale: float, mask: Any, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        kernel, (batch, heads, length, _) = _kernel(query, key, value, mask), query.shape
        made = query.new_empty((batch, length, heads, value.shape[-1]))
        sums: Tensor | None = None
        for asking, asked in _groups(parts, query, key, value):
            for mine, of in _halves(parts, *_whole(parts, key[:, asked], value[:, asked]), mask):
                found, logs = kernel.forward(query[:, asking, mine], of, scale)
                made[:, mine, asking].copy_(found.transpose(1, 2))
                if logs is not None:
                    sums = query.new_empty((batch, heads, length), dtype=logs.dtype) if sums is None else sums
                    sums[:, asking, mine].copy_(logs)
        ctx.parts, ctx.scale, ctx.kernel = parts, scale, kernel
        ctx.save_for_backward(query, key, value, mask, *((made, sums) if sums is not None else ()))
        return made

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value, *_ = saved = ctx.saved_tensors
        of_query, of_key, of_value = (torch.empty_like(one) for one in (query, key, value))
        size = key.shape[2] // 2
        for asking, asked in _groups(ctx.parts, query, key, value):
            sums = _Attend._of_heads(ctx, saved, given, of_query, asking, asked)
            for half, own in enumerate(ctx.parts.summed(sums)):
                mine = slice(half * size, (half + 1) * size)
                of_key[:, asked, mine], of_value[:, asked, mine] = own.split([key.shape[-1], value.shape[-1]], -1)
        return None, None, None, of_query, of_key, of_value

    @staticmethod
    def _of_heads(ctx: Any, saved: Any, given: Tensor, of_query: Tensor, asking: slice, asked: slice) -> Tensor:
        """Writes gradients of queries; returns those of whole rows' keys and values, by rank."""
        query, key, value, mask, *kept = saved
        keys, values = _whole(ctx.parts, key[:, asked], value[:, asked])
        batch, heads, length, width = keys.shape
        parts, held = 2 * ctx.parts.degree, ctx.parts.held
        sums = key.new_zeros((parts, batch, heads, length // parts, width + values.shape[-1]))

        def add(first: int, of_keys: Tensor, of_values: Tensor) -> None:
            """To the parts that gradients of keys and values from a place on lie in."""
            for begin in range(0, of_keys.shape[2], sums.shape[3]):
                here = slice(begin, begin + sums.shape[3])
                part = sums[held.index((first + begin) // sums.shape[3])]
                part[..., :width].add_(of_keys[:, :, here])
                part[..., width:].add_(of_values[:, :, here])

        for mine, of in _halves(ctx.parts, keys, values, mask):
            there = (kept[0][:, mine, asking].transpose(1, 2), kept[1][:, asking, mine]) if kept else None
            back = given[:, mine, asking].transpose(1, 2)
            of_query[:, asking, mine] = ctx.kernel.backward(back, query[:, asking, mine], of, there, ctx.scale, add)
        return sums
