"""Expert parallel: a rank holds some experts whole; tokens travel to them and back (all-to-all).
Under tensor parallel, where each rank has all tokens, none travels. Padding goes to no expert."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from shardwise.parallel.tensor.collectives import Moves
from shardwise.parallel.tensor.slices import Slicer


@dataclass
class RealRows:
    """Which of `count` flattened tokens experts are given: `places` int64 [n], where no padding is,
    None for all; the last ones `trained`, where alone the loss reads the model, if known."""

    places: Tensor | None = None
    count: int = 0
    trained: Tensor | None = None

    def __call__(self, forward: Callable[..., Any], *given: Tensor, last: bool, **named: Any) -> Any:
        """Gives a forward its rows of tensors [tokens, ...]; others of what it makes are 0."""
        places = self.trained if last and self.trained is not None else self.places
        if places is None or named or any(len(one) != self.count for one in given):
            return forward(*given, **named)
        made = forward(*(one.index_select(0, places) for one in given))
        return made.new_zeros(self.count, *made.shape[1:]).index_copy_(0, places, made)


def leave_padding(experts: Mapping[nn.Module, nn.Module], rows: RealRows, *, last: Collection[nn.Module]) -> None:
    """Makes experts, by owners, that are handed routes see no padding of any rank, and of `last`
    owners, whose output no other token reads, what is trained: done last to forwards."""
    for owner, module in experts.items():
        if _takes_routes(module):
            module.forward = partial(rows, module.forward, last=owner in last)


def _takes_routes(experts: nn.Module) -> bool:
    """Whether experts are not given all tokens once for each of them."""
    return len(signature(type(stacks_of(experts)).forward).parameters) > 2  # itself, and tokens


def stacks_of(experts: nn.Module) -> nn.Module:
    """The module that holds the stacked parameters, inside PEFT's wrappers."""
    return cast(Any, experts).get_base_layer() if hasattr(experts, "get_base_layer") else experts


def dealt_parameters(modules: Iterable[nn.Module]) -> frozenset[nn.Parameter]:
    """Parameters of experts of which each rank holds some whole."""
    return frozenset(parameter for one in modules for parameter in stacks_of(one).parameters())


def apply_experts(modules: Iterable[nn.Module], *, mesh: DeviceMesh) -> None:
    """Deals stacked experts on the meta device over a mesh of one axis whose size divides their
    number: modules called with hidden states [tokens, width], indices, weights [tokens, top_k]."""
    slicer = Slicer(mesh)
    for module in modules:
        own = _deal(module, slicer=slicer)
        module.forward = partial(_exchanged, module.forward, mesh.get_group(), len(own))


def deal_experts(module: nn.Module, *, slicer: Slicer, moves: Moves) -> None:
    """Likewise among tensor-parallel ranks, each of which has all tokens: results are summed over
    ranks. Experts that are given all tokens once for each expert have no routes."""
    own = _deal(module, slicer=slicer)
    count = len(own) * slicer.mesh.size()
    if _takes_routes(module):
        module.forward = partial(_own_routes, module.forward, own, moves)
    else:
        module.forward = partial(_own_rows, module.forward, own, count, Moves(mesh=slicer.mesh))


def _deal(module: nn.Module, *, slicer: Slicer) -> range:
    """Leaves this rank its experts, which are counted in the answer. Adapters stay whole, and so do
    norms behind experts: each rank adds a summand to their gradients."""
    stacks: Any = stacks_of(module)
    held = stacks.num_experts // slicer.mesh.size()
    own = range(slicer.mesh.get_local_rank() * held, (slicer.mesh.get_local_rank() + 1) * held)
    slicer.slice(stacks, {name: Shard(0) for name in stacks._parameters})
    stacks.num_experts = held
    for wrapper in module.modules():
        for name in ("get_delta_weight", "get_delta_factors"):  # of which older versions of PEFT know the first
            if hasattr(wrapper, name):
                vars(wrapper)[name] = partial(_of_own, getattr(wrapper, name), own)
    if stacks is not module:
        slicer.open(module)
    return own


def _of_own(made: Callable[..., Any], own: range, *args: Any) -> Any:
    """What adapters add to the experts held here: of one stack, or of its factors and scale."""
    added = made(*args)
    if isinstance(added, Tensor):
        return added[own.start : own.stop]
    return tuple(one[own.start : own.stop] if isinstance(one, Tensor) else one for one in added)


def routes_here(chosen: Tensor, own: range) -> tuple[Tensor, ...]:
    """Tokens and places of routes [tokens, top_k] to a rank's `own` of all experts."""
    return ((chosen >= own.start) & (chosen < own.stop)).nonzero(as_tuple=True)


def _own_routes(
    forward: Callable[..., Tensor], own: range, moves: Moves, hidden: Tensor, chosen: Tensor, scores: Tensor
) -> Tensor:
    """Sends tokens through the experts that are here, and adds up what all ranks made."""
    token, route = routes_here(chosen, own)
    made = forward(hidden[token], (chosen[token, route] - own.start).unsqueeze(1), hidden.new_ones(len(token), 1))
    added = torch.zeros_like(hidden, dtype=torch.promote_types(made.dtype, scores.dtype))
    added = added.index_add(0, token, made * scores[token, route].unsqueeze(1))
    return moves.sum_to_whole(added).to(hidden.dtype)


def _own_rows(forward: Callable[..., Tensor], own: range, count: int, moves: Moves, repeated: Tensor) -> Tensor:
    """All tokens [experts * tokens, width], once for each expert."""
    tokens = len(repeated) // count
    made = forward(repeated[own.start * tokens : own.stop * tokens])
    return moves.gather_sequence(made.unsqueeze(0), sliced_after=True).squeeze(0)


def _exchanged(
    forward: Callable[..., Tensor], group: dist.ProcessGroup, held: int, hidden: Tensor, chosen: Tensor, scores: Tensor
) -> Tensor:
    """Sends tokens to the ranks of their experts (`held`: here), and adds what comes back."""
    top_k, degree = chosen.shape[1], group.size()
    # By expert, and so by rank: what goes to one rank is one piece of the message.
    experts, order = chosen.flatten().sort(stable=True)
    leaving = torch.bincount(experts, minlength=degree * held)
    arriving = torch.empty_like(leaving)
    dist.all_to_all_single(arriving, leaving, group=group)
    # The exchange takes sizes from the host, which waits for the device here.
    sent, received = (counts.view(degree, held).sum(1).tolist() for counts in (leaving, arriving))
    tokens = _travel(hidden[order // top_k], received, sent, group)
    # What arrives is sorted by rank, then by expert: no index travels along.
    own = torch.arange(held, device=hidden.device).repeat(degree).repeat_interleave(arriving)
    # Scores weigh what comes back, so that their gradients are made where the router is.
    made = forward(tokens, own.unsqueeze(1), tokens.new_ones(len(own), 1))
    back = _travel(made, sent, received, group)
    by_token = back[order.argsort()].view(len(hidden), top_k, -1)
    return (by_token * scores.unsqueeze(2)).sum(1).to(hidden.dtype)


def _travel(rows: Tensor, arriving: list[int], leaving: list[int], group: dist.ProcessGroup) -> Tensor:
    travelled = all_to_all_single_autograd(rows.contiguous(), arriving, leaving, group)
    return torch.ops._c10d_functional.wait_tensor(travelled)
