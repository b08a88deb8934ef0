"""What is gathered together, and ahead: as many whole weights are alive as the planner says."""

from typing import Any

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from shardwise.catalog.models import read_model
from shardwise.parallel.fsdp import groups_of
from shardwise.plan.costs.fsdp import unsharded_weights
from shardwise.plan.memory.forecast import holdings_of
from shardwise.plan.work.in_flight import Flight, Scene
from shardwise.spec.layout.axes import Layout
from shardwise.train.build import Build
from tests.dist.cells import ZERO2, planned, prepare_cell, run_built, spread
from tests.dist.parity.test_parity import ALL_BLOCKS, TWO_BLOCKS


def _groups(root: nn.Module) -> list[Any]:
    """FSDP's groups of parameters that are gathered together, the root's left out."""
    sharded = [module for module in root.modules() if isinstance(module, FSDPModule)]
    groups = {id(group): group for module in sharded for group in groups_of(module._get_fsdp_state())}
    return [group for group in groups.values() if root not in group.modules]


def _alive(built: Build) -> tuple[int, int]:
    """Units, and the most elements gathered, or on their way, as a block begins its forward."""
    (root,) = built.model.spread.modules
    groups, seen = _groups(root), list[int]()

    def look(*_: Any) -> None:
        here = [g for g in groups if g.is_unsharded or g._all_gather_result is not None]
        seen.append(sum(one.sharded_param.numel() for group in here for one in group.fsdp_params))

    for block in {id(module): module for group in groups for module in group.modules}.values():
        block.register_forward_hook(look, prepend=True)
    built.step(next(iter(built.batches.from_(0))))
    return len(groups), max(seen)


@pytest.mark.parametrize(
    ("layout", "units", "blocks"),
    [
        (Layout(dp_shard=2, prefetch=2), 4, 3),
        (Layout(dp_shard=2, prefetch=3), 4, 4),
        (Layout(dp_shard=2, min_num_params=TWO_BLOCKS, prefetch=1), 2, 2),
        (Layout(dp_shard=2, min_num_params=TWO_BLOCKS, prefetch=2), 2, 4),
        (Layout(dp_shard=2, min_num_params=3 * TWO_BLOCKS // 2, prefetch=1), 2, 3),
        (Layout(dp_shard=2, min_num_params=ALL_BLOCKS), 1, 4),
    ],
)
def test_as_many_blocks_are_gathered_as_the_layout_says(layout, units, blocks, make_job, tmp_path) -> None:
    job, chosen = make_job("deep tied"), spread(layout)
    found, forward = run_built(_alive, prepare_cell(job, tmp_path), chosen)[0]
    model = read_model(job.model)
    assert found == units
    assert forward == blocks * model.block_parameters // model.num_layers
    work = planned(job, chosen, hardware="2x H100-SXM")  # without gloo's copies
    (holding, *_) = holdings_of(work)
    scene = Scene(work, holding, Flight())
    root = unsharded_weights(scene, units=0)
    # FSDP2's own prefetch runs beside the computation, which processors do one after the other.
    asked = 2 if layout.prefetch > 1 else 1
    assert unsharded_weights(scene, units=asked) - root == forward * work.types.compute


def _of_the_ends(built: Build) -> tuple[list[bool], list[bool], list[bool]]:
    """Of (embedding, head): whole as the last block's forward and backward begin; reduced then."""
    (root,) = built.model.spread.modules
    model: Any = root.model
    of = {one._module_info.module: (group, one) for group in _groups(root) for one in group.fsdp_params}
    found = [of[model.model.embed_tokens], of[model.lm_head]]
    seen: list[list[bool]] = []

    def look(*_: Any) -> None:
        seen.append([group.is_unsharded for group, _ in found])
        seen.append([one.sharded_param.grad is not None for _, one in found])

    model.model.layers[-1].register_forward_pre_hook(look)
    model.model.layers[-1].register_full_backward_pre_hook(look)
    built.step(next(iter(built.batches.from_(0))))
    assert all(parameter.grad is not None for parameter in root.parameters())
    return seen[0], seen[2], seen[3]


def test_the_embedding_is_freed_and_the_head_reduced_while_blocks_run(make_job, tmp_path) -> None:
    chosen = spread(Layout(dp_shard=2), loss="chunked")
    for forward, backward, reduced in run_built(_of_the_ends, prepare_cell(make_job("untied"), tmp_path), chosen):
        assert (forward, backward, reduced) == ([False, False], [False, False], [False, True])


OF_THE_ENDS = {
    "fsdp": spread(Layout(dp_shard=2), micros=2, loss="chunked"),
    "zero2": spread(Layout(dp_shard=2, **ZERO2), gradient_checkpointing="full"),
    "fsdp from the host": spread(Layout(dp_shard=2, prefetch=2), offload="parameters"),
}


@pytest.mark.parametrize("cell", OF_THE_ENDS)
def test_a_trained_embedding_and_head_of_their_own_units_train_as_one_process_does(cell, must_train_alike) -> None:
    must_train_alike(OF_THE_ENDS[cell])


def _sums_over_replicas(built: Build) -> tuple[int, int]:
    """All-reduces of a step among replicas, and the units that are reduced."""
    replicas, sent, send = built.world.mesh["dp_replicate"].get_group(), list[Any](), dist.all_reduce

    def counted(*args: Any, **keys: Any) -> Any:
        sent.append(keys.get("group"))
        return send(*args, **keys)

    dist.all_reduce = counted
    built.step(next(iter(built.batches.from_(0))))
    (root,) = built.model.spread.modules
    return sum(group is replicas for group in sent), len(_groups(root))


def test_replicas_are_added_once_a_step_however_many_micro_batches_it_has(make_job, tmp_path) -> None:
    chosen = spread(Layout(dp_replicate=2, dp_shard=2), micros=2)
    for sums, units in run_built(_sums_over_replicas, prepare_cell(make_job("untied"), tmp_path), chosen):
        assert sums == units == 5, "three blocks, the embedding, and norm with head"
