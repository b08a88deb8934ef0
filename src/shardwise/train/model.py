"""A job's model: built on the meta device, adapted, cut in stages, parallelized, and loaded."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shardwise.errors import UnsupportedError
from shardwise.methods.lora import add_adapters, find_keys, initial_adapter, start_magnitudes
from shardwise.methods.lora_products import join_products
from shardwise.models.anatomy import Anatomy, drops_out, find_anatomy, tensor_plan
from shardwise.models.buffers import saved_buffers, stored_types
from shardwise.models.built.shape import seen_ends, shape_of
from shardwise.models.content import folder_content
from shardwise.models.keys import Keys
from shardwise.models.load import Kin, Materialise, build_on_meta, find_model_folder, kin_of, materialise, read_config
from shardwise.models.nf4 import quantise_linear_layers
from shardwise.models.nf4_experts import quantise_experts
from shardwise.models.routing import Balance, mark_real, mixtures, refuse_to_deal, route
from shardwise.models.stage import StagePlace, final_norm, keep_stage, outer_modules, planned_ends
from shardwise.models.weights import Weights
from shardwise.models.wrapper import Beside, find_inside, language_weights, leave_others, pattern_of, text_config
from shardwise.parallel.apply import Spread, Stage, parallelize
from shardwise.parallel.context import attention_of
from shardwise.parallel.experts import RealRows
from shardwise.parallel.mesh import World
from shardwise.parallel.ownership import Ownership
from shardwise.parallel.tensor.slicing import Parts
from shardwise.spec.adapters.targets import adapter_refusals
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.execution import Execution
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.model.stages import stage_blocks
from shardwise.spec.run import hub_revision
from shardwise.spec.support.rows import in_nf4
from shardwise.spec.support.splits import PLANNED_STAGES, mlp_ends_block, mlp_module, splits
from shardwise.spec.support.trained import execution_refusals
from shardwise.train.guards.checks import agree_on_model
from shardwise.train.loss import LossModule
from shardwise.train.precision import TYPES, Dtypes
from shardwise.train.saving.card import base_name
from shardwise.train.saving.export import Result


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A parallelized model. `shape`: of the whole; `drops`: dropout is allowed in training;
    `ownership`: which parameters this rank owns; `elements`: of each weight of the whole and its
    adapters, by name; `content`: hash of config.json and of each file of weights, by its name;
    `balance`: the loss of its routers, or None; `leaves_padding`: experts do not see it."""

    shape: ModelShape
    spread: Spread
    drops: bool
    result: Result
    ownership: Ownership
    elements: dict[str, int]
    content: dict[str, str]
    balance: Balance | None = None
    leaves_padding: bool = False

    @property
    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """(Hugging Face name, parameter) of this rank, each tensor once."""
        return self.result.parameters

    @property
    def trained(self) -> list[tuple[str, nn.Parameter]]:
        """Those that are trained."""
        return [(name, parameter) for name, parameter in self.parameters if parameter.requires_grad]

    @cached_property
    def trainable(self) -> list[nn.Parameter]:
        """Those that are trained, without names."""
        return [parameter for _, parameter in self.trained]

    @cached_property
    def counted(self) -> list[nn.Parameter]:
        """Those that are trained and that this rank owns."""
        return [p for name, p in self.trained if self.ownership.counts(name, p)]

    def set_training(self, training: bool) -> None:
        """Switches dropout on, where it is allowed, or off."""
        for module in self.spread.modules:
            module.train(training and self.drops)


def build_model(
    job: Job,
    execution: Execution,
    *,
    world: World,
    chat_template: str | None = None,
    ends: tuple[tuple[int, str], ...] = (),
    revision: str | None = None,
    fill: Materialise = materialise,
) -> TrainedModel:
    """Loads, adapts and parallelizes the model of a job. `ends`: as in `Result`; `revision`: of a
    model on the hub, None for its newest; `fill` gives parameters their values. Raises
    UnsupportedError: this job cannot be trained under this execution, and nothing has been loaded;
    ModelError: the model folder cannot be used; GuardError: ranks have different ones."""
    shape = shape_of(job.model, revision=revision, rope=job.rope_scaling)
    if reasons := execution_refusals(job, execution, model=shape) + adapter_refusals(shape, job.adapters):
        raise UnsupportedError("; ".join(reasons))
    source, (named, is_local) = find_model_folder(job.model, revision=revision), base_name(job.model)
    weights = Weights(source)
    content = folder_content(source, weights=weights.files)
    # Before anything is built: a name may stand for different folders on two machines.
    agree_on_model(world, content)
    config, drops = read_config(source, rope=job.rope_scaling), not job.train.disable_dropout
    saved_dtype = _saved_dtype(job, config, execution)  # now: building sets the configuration's type to the built one
    parts = cut_parts(
        partial(_adapted, job, execution, config=config, source=source),
        execution,
        world=world,
        shape=shape,
        drops=drops,
        balance=Balance.of(text_config(config), device=world.device) if shape.has_experts else None,
    )
    keys, beside = _keys(config, parts[0], weights)
    weights.rename(keys)

    def fill_part(part: ModelPart) -> None:
        fill(
            part.model,
            weights=weights,
            device=torch.device("cpu") if execution.parameters_on_host else world.device,
            buffer_device=world.device,
            initialise=partial(initial_adapter, seed=job.train.seed),
            elsewhere=part.elsewhere if beside is None else part.elsewhere | beside.names,
            kin=part.kin,
        )
        start_magnitudes(part.model)

    result = Result(
        model=parts[0].model,
        adapters=parts[0].adapters,
        source=source,
        keys=keys,
        beside=beside,
        saved_dtype=saved_dtype,
        kept=stored_types(parts[0].buffers, parts[0].model, weights),
        chat_template=chat_template,
        ends=ends,
        local_base=named if is_local else None,
        quantised_experts=job.quantises_experts
        and any(m.stacked and in_nf4(m, experts=True) for kind in shape.kinds for m in kind.matrices),
    )
    content = {name: content[name] for name in sorted(content) if name in ("config.json", *weights.files)}
    return spread_parts(
        parts, execution, world=world, shape=shape, drops=drops, fill=fill_part, result=result, content=content
    )


def spread_parts(
    parts: Sequence[ModelPart],
    execution: Execution,
    *,
    world: World,
    shape: ModelShape,
    drops: bool,
    fill: Callable[[ModelPart], None],
    result: Result,
    content: dict[str, str],
) -> TrainedModel:
    """Parallelizes the parts of this rank. `fill`: gives a part's parameters their values;
    `result`: what is to be saved, still without parameters; the rest as in `TrainedModel`."""

    def materialise_parts() -> None:
        for part in parts:
            fill(part)

    spread = parallelize(
        [part.stage for part in parts],
        execution=execution,
        world=world,
        compute_dtype=TYPES[execution.precision].compute,
        materialise=materialise_parts,
    )
    return TrainedModel(
        shape=shape,
        spread=spread,
        drops=drops,
        result=replace(
            result,
            parameters=[named for part in parts for named in part.model.named_parameters()],
            buffers=[named for part in parts for named in saved_buffers(part.model).items()],
        ),
        ownership=Ownership(world=world, copies=frozenset(name for part in parts for name in part.copies)),
        elements=parts[0].elements,
        content=content,
        balance=parts[0].balance,
        leaves_padding=parts[0].stage.rows is not None,
    )


@dataclass(frozen=True, kw_only=True)
class ModelPart:
    """The model, or one stage of it, on the meta device; `buffers`: saved ones of the whole;
    `elsewhere`: weights of other stages, `copies` those they own; the rest as in `TrainedModel`."""

    model: nn.Module
    adapters: Any
    stage: Stage
    elements: dict[str, int]
    buffers: dict[str, torch.dtype]
    kin: Kin
    elsewhere: frozenset[str] = frozenset()
    copies: frozenset[str] = frozenset()
    balance: Balance | None = None


def cut_parts(
    make: Callable[[], tuple[nn.Module, Any]],
    execution: Execution,
    *,
    world: World,
    shape: ModelShape,
    drops: bool,
    balance: Balance | None = None,
) -> list[ModelPart]:
    """The parts of this rank, on the meta device. `make`: the whole model anew, and the PEFT model
    around it or None; `drops`, `balance`: as in `TrainedModel`."""
    layout = execution.layout
    blocks, here = stage_blocks(shape, num_stages=layout.num_stages), world.layout.coordinates(world.rank)
    places = [StagePlace(index=n, count=layout.num_stages, blocks=blocks[n]) for n in layout.stages_of(here.pp)]
    return [_part(*make(), execution, place=place, shape=shape, drops=drops, balance=balance) for place in places]


def _part(
    model: nn.Module,
    adapters: Any,
    execution: Execution,
    *,
    place: StagePlace,
    shape: ModelShape,
    drops: bool,
    balance: Balance | None,
) -> ModelPart:
    types = TYPES[execution.precision]
    if adapters is not None:
        find_keys(adapters)
    _set_types(model, types)
    anatomy = find_anatomy(model)
    kin, ends = kin_of(model), _shared_ends(anatomy)
    # Of the whole model, before a stage is cut out of it: `check_layout` adds ranks up to it.
    elements = {name: parameter.numel() for name, parameter in model.named_parameters()}
    buffers = {name: buffer.dtype for name, buffer in saved_buffers(model).items()}
    before = {*buffers, *(name for name, _ in model.named_parameters(remove_duplicate=False))}
    deals = any(matrix.stacked and not matrix.whole for _, matrix in shape.every_matrix)
    if (deals and execution.layout.tp > 1) or execution.layout.ep > 1:
        refuse_to_deal(model)
    names = {id(module): name for name, module in model.named_modules()}
    norm = names.get(id(final_norm(anatomy, width=shape.hidden_size)), "")
    if place.count > 1:
        # As transformers plans a family of the catalogue, or as a forward is seen to go.
        planned = shape.built is None and shape.family in PLANNED_STAGES
        keep_stage(anatomy, place, planned_ends(anatomy) if planned else seen_ends(anatomy.model.config))
    # Stages that recompute would have to know of which micro-batch; graphs want few shapes.
    rows = RealRows() if shape.has_experts and place.count == 1 and not execution.compile else None
    root = LossModule(
        anatomy,
        rows=rows,
        types=types,
        chunk=execution.head_chunk(shape.vocab_size, plain=shape.plain_head),
        plain=shape.plain_head,
        compiled=execution.compile,
        first_block=place.blocks.start,
        makes_loss=place.is_last,
    )
    root.train(drops)
    route(model, compute=types.compute, balance=balance)
    blocks = [anatomy.blocks[index] for index in place.blocks]
    if balance is not None:
        mark_real(blocks, balance)
    mlp, norm_names = mlp_module(shape), {norm.name for kind in shape.kinds for norm in kind.norms}
    norms = [module for block in blocks for name, module in block.named_modules() if name in norm_names]
    experts = {mixture.owner: mixture.experts for block in blocks for mixture in mixtures(block)}
    shared = {name for name, parameter in model.named_parameters() if place.count > 1 and id(parameter) in ends}
    slices = None
    if execution.layout.tp > 1:
        slices = Parts(
            plan=tensor_plan(anatomy.backbone.config),
            embedding=anatomy.embedding if place.is_first or (place.is_last and anatomy.tied) else None,
            blocks=blocks,
            experts=experts if deals else {},
            norm=model.get_submodule(norm),
            head=anatomy.head if place.is_last else None,
            compares=root.head_loss is not None and root.head_loss.takes_slices,
            drops=root.training and drops_out(model),
            backbone=anatomy.backbone if splits(shape, "whole_stream") else None,
        )
    return ModelPart(
        model=model,
        adapters=adapters,
        balance=balance,
        stage=Stage(
            index=place.index,
            root=root,
            blocks=blocks,
            width=anatomy.backbone.config.hidden_size,  # pyright: ignore
            messages=(shape.message(place.blocks.start), shape.message(place.blocks.stop)),
            **_outside(anatomy, root, place),
            experts=experts,
            rows=rows,
            mlps=[block.get_submodule(mlp) for block in blocks] if execution.mlp == "chunked" and mlp else (),
            norms=[*norms, model.get_submodule(norm)] if place.is_last and norm else norms,
            mlp_ends_block=mlp_ends_block(shape),
            parts=slices,
            tied=frozenset(f"model.{name}" for name in shared),
            # Indexers learn nothing, kernels read weights past adapters, short rows fill no chunk.
            idle=any(matrix.reads == "other" for kind in shape.kinds for matrix in kind.matrices),
        ),
        elements=elements,
        buffers=buffers,
        kin=kin,
        elsewhere=frozenset(before - {*saved_buffers(model), *dict(model.named_parameters(remove_duplicate=False))}),
        copies=frozenset(shared) if place.is_last else frozenset(),
    )


def _outside(anatomy: Anatomy, root: LossModule, place: StagePlace) -> dict[str, list[nn.Module]]:
    """What a stage calls before its blocks and behind them, where these share no weight."""
    if _shared_ends(anatomy):
        return {}
    norm: list[nn.Module] = []
    with suppress(UnsupportedError):  # transformers does not say where it is
        norm = [anatomy.backbone.get_submodule(outer_modules(anatomy)[1])]
    behind = [] if root.head_loss is None else [*norm, root.head_loss]
    return {"before": [anatomy.embedding] if place.is_first else [], "behind": behind}


def _shared_ends(anatomy: Anatomy) -> set[int]:
    """Ids of parameters that embedding and head share, also where a trained copy stands beside."""
    return {id(p) for p in anatomy.embedding.parameters()} & {id(p) for p in anatomy.head.parameters()}


def _adapted(job: Job, execution: Execution, *, config: Any, source: Path) -> tuple[nn.Module, Any]:
    """The whole model on the meta device, and the PEFT model around it (full training: None)."""
    model, adapted = build_on_meta(copy.deepcopy(config), attn_implementation=attention_of(execution)), None
    inside = find_inside(model)
    exclude = None if inside is None else pattern_of(leave_others(model, inside))
    if job.adapters is not None:
        base, revision = base_name(job.model)[0], hub_revision(job.model, folder=source)
        adapted = add_adapters(model, job.adapters, base_model=base, revision=revision, exclude=exclude)
        if job.method == "qlora":
            quantise_linear_layers(model, dtype=TYPES[execution.precision].compute)
            if job.quantises_experts:
                quantise_experts(model, dtype=TYPES[execution.precision].compute)
        join_where_alone(model, execution)
    return model, adapted


def _keys(config: Any, part: ModelPart, weights: Weights) -> tuple[Keys, Beside | None]:
    """What the keys of a folder are called, and what is there beside the trained language model."""
    if text_config(config) is config:
        known = dict.fromkeys(part.buffers, 0) | part.elements
        return Keys(part.model, weights.names, weights.shape, known=known), None
    whole = build_on_meta(copy.deepcopy(config), attn_implementation="eager")
    keys = Keys(whole, weights.names, weights.shape, reads=language_weights(whole))
    return keys, Beside.find(whole, keys=keys, folder=weights.folder)


def join_where_alone(model: nn.Module, execution: Execution) -> None:
    """Joins products of adapters; not where slices are read inside the layers' own forwards, or a
    cut backward takes one result's gradients at a time; each alone where graphs compute again."""
    again = execution.compile and execution.gradient_checkpointing != "none"
    if execution.layout.tp == 1 and execution.layout.schedule != "zero_bubble":
        join_products(model, together=not again)


def _set_types(model: nn.Module, types: Dtypes) -> None:
    """Casts parameters, on the meta device, to the dtype they are stored in; but quantised ones."""
    for parameter in filter(torch.is_floating_point, model.parameters()):
        parameter.data = parameter.data.to(types.trainable if parameter.requires_grad else types.frozen)


def _saved_dtype(job: Job, config: Any, execution: Execution) -> torch.dtype:
    """As the job says; by default a model's source dtype, and of an adapter the trained one."""
    if job.train.save_dtype != "auto":
        return getattr(torch, job.train.save_dtype)
    if job.adapters is not None:
        return TYPES[execution.precision].trainable
    dtype = getattr(config, "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else torch.float32
