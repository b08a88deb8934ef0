"""Applies a parallel layout to a model, in this order:

(split in stages) -> tensor, experts -> tiles -> recompute -> compile -> saved on the host -> shard
-> materialise -> replicate
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from shardwise.parallel.compiled import apply_compile
from shardwise.parallel.experts import RealRows, apply_experts, dealt_parameters, leave_padding
from shardwise.parallel.fsdp import apply_sharding
from shardwise.parallel.gradients import Buckets, Finish, apply_replication
from shardwise.parallel.mesh import World, side_by_side
from shardwise.parallel.pipeline import Pipeline
from shardwise.parallel.recompute import apply_recompute, keep_saved_on_host
from shardwise.parallel.single_stage import WholeModel
from shardwise.parallel.tensor.slicing import Parts, apply_tensor
from shardwise.parallel.tiled_mlp import apply_tiles
from shardwise.spec.layout.execution import Execution

#: A model over ranks. Every rank calls the same method with its own share of the data.
Spread = WholeModel | Pipeline


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A pipeline stage of this rank, or the whole model; parameters on the meta device.

    Attributes:
        root: the module whose forward is called; holds all parameters.
        blocks: its decoder blocks, the units of recompute, compilation and sharding.
        width: hidden size; `messages`: elements of a token that it is sent, and sends.
        experts: modules inside the blocks that route to experts -> their experts.
        mlps, norms: what may be computed in tiles; `mlp_ends_block`: and what the first give is
            only added up.
        parts: what tensor parallelism slices, or None.
        before, behind: what is called before the blocks and behind them, each a unit of sharding;
            none where tied.
        tied: names, in `root`, of parameters that another stage holds a copy of.
        idle: some weights may have no gradient in a step.
        rows: what of a micro-batch is no padding, or None where experts see all of it.
    """

    index: int
    root: nn.Module
    blocks: Sequence[nn.Module]
    width: int
    messages: tuple[int, int] = (0, 0)
    before: Sequence[nn.Module] = ()
    behind: Sequence[nn.Module] = ()
    experts: Mapping[nn.Module, nn.Module] = field(default_factory=dict[nn.Module, nn.Module])
    mlps: Sequence[nn.Module] = ()
    norms: Sequence[nn.Module] = ()
    mlp_ends_block: bool = False
    parts: Parts | None = None
    tied: frozenset[str] = frozenset()
    idle: bool = False
    rows: RealRows | None = None


def parallelize(
    stages: Sequence[Stage],
    *,
    execution: Execution,
    world: World,
    compute_dtype: torch.dtype,
    materialise: Callable[[], None],
) -> Spread:
    """Parallelizes a model split in stages, with parameters on the meta device. `stages`: those of
    this rank, in order; `compute_dtype`: dtype of gathered weights, and of activations sent between
    stages; `materialise`: gives the (by then sharded) parameters their values."""
    for stage in stages:
        # Slice first: what follows works on this rank's slice of each matrix.
        if stage.parts is not None:
            apply_tensor(stage.parts, mesh=world.mesh["tp"])

        if world.expert_mesh is not None:
            apply_experts(stage.experts.values(), mesh=world.expert_mesh["ep"])

        if stage.rows is not None:
            behind = {*stage.blocks[-1].modules()} if stage.mlp_ends_block else set[nn.Module]()
            leave_padding(stage.experts, stage.rows, last=behind)

        # Tiles wrap the MLP's own forward, inside of what computes its block again.
        if execution.mlp == "chunked":
            size = execution.mlp_chunk(stage.width)
            apply_tiles(stage.mlps, size=size, ends_block=stage.mlp_ends_block)
            # Compiled, norms save no more than what they read, and are parts of graphs.
            apply_tiles(() if execution.compile else stage.norms, size=size)

        # Compile each block's forward, with the recomputation inside the graph, and hooks and
        # gathers outside; where attention or the MLP breaks the graph, which a recomputation does
        # not allow, that is outside too.
        if execution.compile and execution.breaks_graphs:
            apply_compile(stage.blocks)

        # Recompute wraps the block's own forward, inside the hooks that gather weights.
        apply_recompute(stage.blocks, execution.recompute)

        if execution.compile and not execution.breaks_graphs:
            apply_compile(stage.blocks)

        # Outside of compilation, for what a graph saves is known when it ends.
        if execution.saves_on_host:
            keep_saved_on_host(stage.blocks, world.device)

        # Shard on the meta device, so that no rank ever holds more than its own shard.
        if execution.gathers_weights:
            apply_sharding(
                stage.root,
                blocks=stage.blocks,
                before=stage.before,
                behind=stage.behind,
                mesh=side_by_side(world.replicas, world.shards) if world.replicas.size() > 1 else world.shards,
                layout=execution.layout,
                compute_dtype=compute_dtype,
                on_host=execution.parameters_on_host,
                dealt=None if world.expert_mesh is None else ([*stage.experts.values()], world.expert_mesh),
            )

    materialise()

    buckets = execution.layout.fills_buckets and not execution.gathers_weights
    divisor = world.layout.copies * world.layout.shard_degree if execution.gathers_weights or buckets else 1
    finish = _finish(stages, world=world, replicates=not (execution.gathers_weights or buckets))
    if world.pipes is not None:
        return Pipeline(
            stages={stage.index: stage.root for stage in stages},
            pipes=world.pipes,
            world=world,
            widths={
                (forward, stage.index + (-1 if forward else 1)): stage.messages[not forward]
                for stage in stages
                for forward in (True, False)
            },
            dtype=compute_dtype,
            gradient_divisor=divisor,
            execution=execution,
            finish=finish,
        )

    # DDP last: its buckets need materialised parameters. ZeRO-1 is DDP with a sharded optimizer.
    (stage,) = stages
    root, begin = stage.root, Buckets()
    if buckets:
        root, begin = apply_replication(root, group=world.data_group, device=world.device, idle=stage.idle)
    return WholeModel(
        module=root, world=world, gradient_divisor=divisor, execution=execution, begin=begin, finish=finish
    )


def _finish(stages: Sequence[Stage], *, world: World, replicates: bool) -> Finish:
    """What is left after backward; `replicates` if neither DDP nor FSDP reduces over replicas."""
    named = [(stage, name, p) for stage in stages for name, p in stage.root.named_parameters() if p.requires_grad]
    experts = [] if world.expert_mesh is None else [one for stage in stages for one in stage.experts.values()]
    return Finish(
        trained=tuple(p for _, _, p in named),
        tied=tuple(p for stage, name, p in named if name in stage.tied),
        ends=world.pipes.ends if world.pipes is not None else None,
        replicas=world.data_group if replicates and world.data_group.size() > 1 else None,
        dealt=dealt_parameters(experts),
        expert_replicas=None if world.expert_mesh is None else world.expert_mesh["dp_mod_ep"].get_group(),
    )
