"""Sharded weights under a backward that is cut in two: gathered once, and their gradients reduced once, in a step.

FSDP2 lets go of weights, and reduces their gradients, as a backward passes. Where the gradients of weights come later
than those of inputs, nothing is there to be reduced then, and the graph still needs the weights. So both wait for the
end of the step, as in torchtitan and `torch.distributed.pipelining`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule


@contextmanager
def reduction_postponed(roots: Iterable[nn.Module]) -> Iterator[None]:
    """Inside, weights stay gathered and gradients whole; at the end gradients are reduced and weights let go of.

    Args:
        roots: modules that FSDP2 shards, each the root of its own.
    """
    sharded = [root for root in roots if isinstance(root, FSDPModule)]
    for root in sharded:
        _set(root, last=False)
    yield
    for root in sharded:
        _set(root, last=True)
        for group in _groups(root):
            group.post_backward()
        root._get_fsdp_state()._root_post_backward_final_callback()


def keep_gradients(root: nn.Module) -> None:
    """Adds what a backward has left to what earlier ones did, in the type of the reduction: bits of a bfloat16 sum over
    micro-batches would be lost."""
    if isinstance(root, FSDPModule):
        for group in _groups(root):
            for parameter in group.fsdp_params:
                parameter.accumulate_unsharded_grad_if_needed()
                parameter.to_accumulated_grad_if_needed()


def _set(root: FSDPModule, *, last: bool) -> None:
    root.set_is_last_backward(last)
    root.set_reshard_after_backward(last)
    root.set_requires_gradient_sync(last)


def _groups(root: FSDPModule) -> Iterator[Any]:
    """The units of a root, each a group of parameters."""
    for state in root._get_fsdp_state()._state_ctx.all_states:
        yield from groups_of(state)


def groups_of(state: Any) -> list[Any]:
    """The groups of parameters that FSDP2 gathers for a module: of torch 2.11 one at most, later a list."""
    several = getattr(state, "_fsdp_param_groups", None)
    if several is None:
        several = [state._fsdp_param_group] if state._fsdp_param_group else []
    return list(several)
