"""Until a step's end, keeps FSDP2's weights gathered and gradients unreduced, or sums of shards.

Schedules that split backward in two compute the gradients of weights after those of inputs, so the
graph still needs the weights when FSDP2 would free them. torchtitan does the same.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from shardwise.spec.layout.execution import Execution


@contextmanager
def reduction_postponed(roots: Iterable[nn.Module]) -> Iterator[None]:
    """Inside, weights stay gathered, gradients unreduced; leaving reduces them, frees weights."""
    sharded = [root for root in roots if isinstance(root, FSDPModule)]
    for last in (False, True):
        for root in sharded:
            root.set_is_last_backward(last)
            root.set_reshard_after_backward(last)
            root.set_requires_gradient_sync(last)
        if not last:
            yield
    for root in sharded:
        # What autograd's hooks would have called, had reductions been due in backward.
        for group in _groups(root):
            group.post_backward()
        root._get_fsdp_state()._root_post_backward_final_callback()


def keep_gradients(root: nn.Module) -> None:
    """Accumulates unsharded gradients in the reduction's dtype, so bfloat16 sums lose no bits."""
    for parameter in _parameters(root):
        parameter.accumulate_unsharded_grad_if_needed()
        parameter.to_accumulated_grad_if_needed()


def whole_gradients(root: nn.Module) -> list[torch.Tensor]:
    """The gradients that FSDP2 keeps whole until they are reduced."""
    parameters = _parameters(root)
    sums = [parameter.unsharded_accumulated_grad for parameter in parameters]
    fresh = [getattr(getattr(parameter, "_unsharded_param", None), "grad", None) for parameter in parameters]
    return [gradient for gradient in (*sums, *fresh) if gradient is not None]


def _parameters(root: nn.Module) -> list[Any]:
    """FSDP2's own, of a root; none where it is not sharded."""
    groups = _groups(root) if isinstance(root, FSDPModule) else ()
    return [parameter for group in groups for parameter in group.fsdp_params]


def reduce_at_last(root: nn.Module, execution: Execution, *, last: bool) -> None:
    """Before each backward: what waits, in float32, for the `last` one of a step. With
    `reduce_once` these are whole gradients, otherwise sums of shards, then added over replicas."""
    if isinstance(root, FSDPModule):
        if execution.reduce_once:
            root.set_requires_gradient_sync(last)
        elif execution.adds_replicas_once:
            root.set_requires_all_reduce(last)


def _groups(root: FSDPModule) -> Iterator[Any]:
    for state in root._get_fsdp_state()._state_ctx.all_states:
        yield from groups_of(state)


def groups_of(state: Any) -> list[Any]:
    """The parameter groups FSDP2 gathers for a module: at most one in torch 2.11, a list later."""
    several = getattr(state, "_fsdp_param_groups", None)
    if several is None:
        several = [state._fsdp_param_group] if state._fsdp_param_group else []
    return list(several)
