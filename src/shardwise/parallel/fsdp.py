"""ZeRO-2/3 and hybrid sharding with FSDP2: a unit for each block or several, for the embedding, and
for norm and head. What is left, such as learned positions, is in the root's unit, and so is all
outside blocks where it is tied.

Frozen and trainable parameters share a unit: a LoRA block is gathered in one collective. With
weights in host memory FSDP2 serves a single rank too.

Until a step's end weights may stay gathered, and gradients unreduced or sums of shards. Schedules
that split backward in two compute the gradients of weights after those of inputs, so the graph
still needs the weights when FSDP2 would free them. torchtitan does the same.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.utils._pytree import tree_map_only

from shardwise.parallel.experts import dealt_parameters
from shardwise.parallel.ownership import local_part
from shardwise.spec.layout.axes import Layout, dim_of_shard
from shardwise.spec.layout.execution import Execution
from shardwise.spec.model.stages import unit_blocks


def apply_sharding(
    root: nn.Module,
    *,
    blocks: Sequence[nn.Module],
    before: Sequence[nn.Module] = (),
    behind: Sequence[nn.Module] = (),
    mesh: DeviceMesh,
    layout: Layout,
    compute_dtype: torch.dtype,
    on_host: bool = False,
    dealt: tuple[Sequence[nn.Module], DeviceMesh] | None = None,
) -> None:
    """Shards a model in place over the last axis of `mesh`, replicating over the first of two.

    Gradients are reduced in float32. Under tensor parallelism FSDP2 first sums those of replicated
    parameters over `tp`, in the compute dtype; where reductions are postponed
    (`parallel/fsdp.py`) that is float32 too.

    `root`: whose forward is called, on the meta device; `before`, `behind`: the embedding and what
    is called behind the blocks, where they share no weight; `compute_dtype`: of gathered weights;
    `on_host`: all stays in host memory; `dealt`: experts inside the blocks that are dealt among
    ranks, which are units of their own, and a mesh of the axes of experts."""
    apart = dealt_parameters(() if dealt is None else dealt[0])
    left_out = {*apart, *(parameter for parameter in root.parameters() if not parameter.numel())}
    shard = _shard(mesh, compute_dtype=compute_dtype, on_host=on_host)
    # By whole parameters, before they are cut: the planner forms units by the same numbers.
    sizes = [sum(parameter.numel() for parameter in block.parameters()) for block in blocks]
    for module in (*before, *blocks, *behind):
        module.register_forward_hook(_return_no_view)  # before the hooks of FSDP2, which it is for
    units = [[blocks[index] for index in unit] for unit in unit_blocks(sizes, least=layout.min_num_params)]
    for unit in (*units, *([list(before)] if before else ())):
        modules = unit[0] if len(unit) == 1 else unit
        shard(modules, reshard_after_forward=layout.reshard_after_forward, ignored_params=left_out or None)
    # Weights of head and root, last in forward and first in backward, stay gathered in between.
    if behind:
        shard(list(behind), reshard_after_forward=False)
    behinds = {parameter for module in behind for parameter in module.parameters()}
    shard(root, reshard_after_forward=False, ignored_params=behinds | left_out or None)
    if layout.prefetch > 1:  # units in either direction; FSDP2's default is one
        firsts, ahead = [cast(FSDPModule, unit[0]) for unit in units], layout.prefetch
        for index, unit in enumerate(firsts):
            unit.set_modules_to_forward_prefetch(firsts[index + 1 : index + 1 + ahead])
            unit.set_modules_to_backward_prefetch(firsts[max(0, index - ahead) : index][::-1])
    if before and not any(parameter.requires_grad for module in before for parameter in module.parameters()):
        # A frozen embedding has no backward. The root is there: nothing is prefetched in its place.
        cast(FSDPModule, units[0][0]).set_modules_to_backward_prefetch([cast(FSDPModule, root)])
    if dealt is None:
        return
    # Blocks left dealt experts out; their adapters are the blocks'.
    experts, expert_mesh = dealt
    axes = ("dp_outer", "dp_mod_ep") if layout.shard_degree > 1 and layout.copies > 1 else "dp_mod_ep"
    shard = _shard(expert_mesh[axes], compute_dtype=compute_dtype, on_host=on_host)
    for module in experts:
        others = {parameter for parameter in module.parameters() if parameter not in apart}
        shard(module, reshard_after_forward=layout.reshard_after_forward, ignored_params=others or None)
        sharded = cast(FSDPModule, module)
        # A dealt expert's gradient is a mean over all data ranks, as others', not over its shards.
        sharded.set_gradient_divide_factor(float(layout.copies * layout.shard_degree))
        # gloo does not scale as it reduces; where there is nothing to reduce torch divides anyway
        sharded.set_force_sum_reduction_for_comms(mesh.device_type == "cpu" and expert_mesh["dp_mod_ep"].size() > 1)


def _shard(mesh: DeviceMesh, *, compute_dtype: torch.dtype, on_host: bool) -> Callable[..., Any]:
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    # Pinned memory is copied while the GPU computes; without a GPU there is none.
    host = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if on_host else OffloadPolicy()
    degree = mesh.size(mesh.ndim - 1)

    def cut(parameter: nn.Parameter) -> Shard:
        """Along which dim, over the last axis of the mesh; of a slice, of what the slice has."""
        return Shard(dim_of_shard(tuple(local_part(parameter).shape), degree=degree))

    return partial(fully_shard, mesh=mesh, mp_policy=policy, offload_policy=host, shard_placement_fn=cut)


def _return_no_view(_block: nn.Module, _inputs: Any, output: Any) -> Any:
    """Clones views that a block returns, as OPT's do: a view would lose FSDP2's backward hooks."""
    return tree_map_only(torch.Tensor, lambda made: made.clone() if made._is_view() else made, output)


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
