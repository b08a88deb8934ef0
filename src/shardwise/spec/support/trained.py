"""What the trainer accepts: one table, read by the planner and by the trainer.

`auto` chooses only what is trained. What a user asks for by name is forecast even where it is not trained, with a
sentence that says so; the trainer refuses it before it loads any weight.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.spec.adapters.targets import hold_of, names_it
from shardwise.spec.job.keys import Job, Method
from shardwise.spec.layout.axes import Layout, dim_of_shard
from shardwise.spec.layout.execution import Execution, Offload, OptimizerName, Precision
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.support.attention import documents_refusal
from shardwise.spec.support.rows import follows_the_batch, follows_the_layout
from shardwise.spec.support.splits import (
    EXPERT_FAMILIES,
    NOT_IN_PARTS,
    STAGED_FAMILIES,
    as_trained,
    forecast_only,
    heads,
    most_slices,
    splits,
    unseen,
)

#: Ways of spreading that are trained, with the same result as on one process; so are products, such as `fsdp x pp`.
TRAINED_WAYS = ("single", "ddp", "zero1", "zero2", "fsdp", "hsdp", "tp", "mp", "pp", "cp", "ep")

PRECISIONS: tuple[Precision, ...] = ("mixed", "bf16", "fp16", "fp32")
OPTIMIZERS: tuple[OptimizerName, ...] = ("adamw", "adamw_foreach", "adamw_8bit", "sgd", "adafactor")
OFFLOADS: tuple[Offload, ...] = ("none", "optimizer", "parameters", "all")

#: What is said of a mixture of experts that is not trained, whatever its layout.
NO_EXPERTS = f"is a mixture of experts that this version does not train; it trains {', '.join(EXPERT_FAMILIES)}"

_EXPERTS_COMPILED = "compile is not trained with a mixture of experts"

_QLORA_COMPILED = "compile is not trained with method qlora"

#: Elements that share a scale in NF4 (Dettmers et al., 2023): tensor parallelism cuts between such blocks.
NF4_BLOCK = 64

#: Families whose linear layers are of a class of their own, which bitsandbytes passes over.
OWN_LINEAR_LAYERS = ("falcon",)


def refusal(*, method: Method, layout: Layout, model: ModelShape | None = None, stated: bool = False) -> str | None:
    """Why a layout cannot be trained with a method; None where it can.

    Args:
        model: whose family must be trained under the layout, where it is known.
        stated: whether a job states the layout; then the reason ends with what to write instead.
    """
    of_model = None if model is None else _model_refusal(model, layout, method=method, stated=stated)
    return way_refusal(layout) or _dealing_refusal(layout) or of_model or _schedule_refusal(layout)


def way_refusal(layout: Layout) -> str | None:
    """Why a way of spreading is not trained, whatever the model; None where it is."""
    if all(way in TRAINED_WAYS for way in layout.strategy.split(" x ")):
        return None
    nearest = "fsdp" if layout.dp_shard > 1 or layout.tp > 1 or layout.pp > 1 or layout.cp > 1 else "ddp"
    return f"{layout.strategy} is not trained by this version; the nearest layout that is: {nearest}"


def _schedule_refusal(layout: Layout) -> str | None:
    if layout.schedule == "zero_bubble" and layout.weight_shards > 1 and layout.reshard_after_forward:
        # The deferred half of a cut backward comes when weights would have been let go of.
        return "schedule zero_bubble keeps gathered weights until a step ends; write zero_stage: 2, or schedule: 1f1b"
    return None


def _dealing_refusal(layout: Layout) -> str | None:
    """Why experts are not dealt among ranks under a layout, whatever the model."""
    if layout.ep == 1:
        return None
    if layout.tp > 1 or layout.cp > 1:
        return f"ep is not trained with {'tp' if layout.tp > 1 else 'cp'} by this version; leave one of them out"
    if layout.shards_states_only:
        return "ep is not trained with zero1, whose ranks hold whole weights; use fsdp, zero2 or ddp with it"
    return None


def _not_dealt(model: ModelShape, layout: Layout) -> str | None:
    """Why a model's experts cannot be dealt evenly; None where they can."""
    stacks = [m for kind in model.kinds for m in kind.matrices if m.stacked]
    if layout.ep == 1:
        return None
    if not stacks:
        return f"ep = {layout.ep} deals experts among ranks, and {model.family} has none; write ep: 1, or use fsdp"
    number, shards = stacks[0].count, max(1, layout.dp_shard // layout.ep)
    if number % layout.ep:
        return f"ep = {layout.ep} does not divide the {number} experts of each block"
    for m in stacks:
        rows, columns = (m.columns, m.rows) if m.transposed else (m.rows, m.columns)
        shape = (number // layout.ep, rows, columns)
        if shape[dim_of_shard(shape, degree=shards)] % shards:
            return f"the {shape[0]} experts of a rank under ep = {layout.ep} are not cut evenly over {shards} shards"
    return None


def _skips(model: ModelShape, layout: Layout) -> str | None:
    if not model.layerdrop or layout.world_size == 1:
        return None
    return (
        f"layerdrop {model.layerdrop:g} is not trained on several ranks: each would leave out other blocks, and "
        "wait for ever for what the others exchange of them; the nearest layout that trains it: one process, or "
        "set train.disable_dropout: true"
    )


def _not_sliced(model: ModelShape, layout: Layout) -> str | None:
    # A build that no degree slices evenly was not tried sliced: then that is the reason, and not the family.
    if layout.tp == 1 or splits(model, "slices") or (model.built is not None and most_slices(model) == 1):
        return None
    return unseen(model, "slices", nearest=_nearest(model)) or (
        f"{model.family} is not sliced by tensor parallel (tp) in this version; "
        f"the nearest layout that trains it: {_nearest(model)}"
    )


def _not_staged(model: ModelShape, layout: Layout) -> str | None:
    if layout.pp == 1 or splits(model, "stages"):
        return None
    return unseen(model, "stages", nearest=_nearest(model)) or (
        f"{model.family} is not cut in pipeline stages by this version, which does {', '.join(STAGED_FAMILIES)}; "
        f"the nearest layout that trains it: {_nearest(model)}"
    )


def _not_in_parts(model: ModelShape, layout: Layout) -> str | None:
    compares = model.attention_softcap or model.eager_attention or model.has_experts
    if layout.cp == 1 or not (compares or model.family in NOT_IN_PARTS):
        return None
    return (
        f"{model.family} is not trained on parts of sequences (cp) by this version; "
        f"the nearest layout that trains it: {_nearest(model)}"
    )


def _nearest(model: ModelShape) -> str:
    return "fsdp, with train.disable_dropout: true" if model.layerdrop else "fsdp"


def misfit(model: ModelShape, layout: Layout, *, stated: bool = False) -> str | None:
    """Why a model cannot be spread by a layout at all; None where it can.

    Args:
        model: as the job trains it.
        stated: whether a job states the layout; then the reason ends with what to write instead.
    """
    uneven, stages = _uneven(layout.tp, model, heads(model)), _too_many_stages(model, layout)
    if uneven is None and stages is None:
        return None
    if not forecast_only(model):
        uneven, stages = _not_sliced(model, layout) or uneven, _not_staged(model, layout) or stages
        return _joined(uneven, stages, _skips(model, layout), stated=stated)
    return _joined(uneven, stages, stated=stated)


def _model_refusal(model: ModelShape, layout: Layout, *, method: Method, stated: bool) -> str | None:
    """Why a model is not trained under a layout that has no more stages than the model has blocks."""
    parts = {**heads(model), "elements of the MLP's width": model.intermediate_size}
    sliced = _not_sliced(model, layout) or _uneven(layout.tp, model, parts)
    if method == "qlora":
        sliced = sliced or _cuts_blocks(layout.tp, model)
    staged, whole = _not_staged(model, layout), _not_in_parts(model, layout)
    return _joined(sliced, staged, whole, _not_dealt(model, layout), _skips(model, layout), stated=stated)


def _joined(*reasons: str | None, stated: bool) -> str | None:
    """The reasons in one sentence; with a layout to write, where none of them names one."""
    found = [reason for reason in reasons if reason]
    told = any("fsdp" in reason or "one process" in reason for reason in found)
    return "; ".join([*found, *(["or use fsdp"] if stated and not told else [])]) if found else None


def _uneven(tp: int, model: ModelShape, parts: dict[str, int]) -> str | None:
    """Which of the parts `tp` does not divide; None where it divides all."""
    uneven = [f"{count} {what}" for what, count in parts.items() if count % tp]
    if not uneven:
        return None
    most = most_slices(model)
    remedy = f"the largest tp that slices it evenly is {most}" if most > 1 else "no tp slices it evenly: use fsdp"
    return f"tp = {tp} does not divide the model's {' and '.join(uneven)}; {remedy}"


def _cuts_blocks(tp: int, model: ModelShape) -> str | None:
    """Which matrix `tp` cuts inside of quantised blocks; None where it cuts between them."""
    for matrix in (m for kind in model.kinds for m in kind.matrices if tp > 1 and m.sliced_by):
        if matrix.columns % (NF4_BLOCK * (tp if matrix.sliced_by == "columns" else 1)):
            return f"tp = {tp} cuts blocks of {NF4_BLOCK} quantised elements in rows of {matrix.name}; use fsdp"
    return None


def _too_many_stages(model: ModelShape, layout: Layout) -> str | None:
    if layout.num_stages <= model.num_layers:
        return None
    # The most pipeline ranks whose stages have a block each.
    most = model.num_layers * layout.pp // layout.num_stages
    remedy = f"use pp: {most} at most"
    if most < 2:
        remedy = f"use schedule: 1f1b and pp: {model.num_layers} at most" if model.num_layers > 1 else "use fsdp"
    return f"{layout.num_stages} pipeline stages for {model.num_layers} layers; {remedy}"


def open_refusal(*, method: Method, layout: Layout, model: ModelShape | None = None) -> str | None:
    """Why `layout: auto` leaves a layout out; None where it considers it. What no layout trains is forecast under those
    that train other models."""
    known = None if model is None or forecast_only(model) else model
    parts = None if model is None else _not_in_parts(model, layout)
    return refusal(method=method, layout=layout, model=known) or parts


def execution_refusals(job: Job, execution: Execution, *, model: ModelShape | None = None) -> list[str]:
    """Every reason why an execution of a job cannot be trained; empty where it can."""
    return [*impossibilities(job, execution, model=model), *not_trained(job, execution, model=model)]


def impossibilities(job: Job, execution: Execution, *, model: ModelShape | None = None) -> list[str]:
    """What contradicts itself in an execution: it is neither trained nor planned."""
    reasons: list[str] = []
    layout = execution.layout
    if model is not None and (too_many := _too_many_stages(model, layout)):
        reasons.append(too_many)
    if execution.parameters_on_host:
        reasons += _streaming_contradictions(execution)
    if model is not None and (lacking := documents_refusal(job, model, execution.attn_implementation)):
        reasons.append(f"attn_implementation {execution.attn_implementation} {lacking}; use sdpa")
    if model is not None:
        reasons += follows_the_layout(job, model, layout)
    return reasons


def _streaming_contradictions(execution: Execution) -> list[str]:
    """What contradicts weights that are streamed from the host."""
    layout, asked = execution.layout, f"offload {execution.offload}"
    if layout.shards_states_only:
        return [
            f"{asked} brings weights to the GPU as they are used, and zero1 keeps them there; use offload: optimizer"
        ]
    if layout.pp > 1 and layout.schedule == "zero_bubble":
        # Weights would stay on the GPU until a step ends, and nothing be gained.
        return [f"{asked} does not go with schedule zero_bubble; use schedule: 1f1b, or offload: optimizer"]
    return []


def not_trained_under(execution: Execution) -> list[str]:
    """What an execution asks for that is trained, but not under its layout."""
    cut = execution.layout.pp > 1 and execution.layout.schedule == "zero_bubble"
    refused = _eager_under(execution.layout) if execution.compile else None
    reasons = [f"{refused}; use compile: false"] if refused else []
    kernel = execution.attn_implementation
    if execution.layout.cp > 1 and kernel != "sdpa":
        reasons.append(f"attn_implementation {kernel} is not trained under {execution.layout.strategy}; use sdpa")
    recompute = f"gradient_checkpointing {execution.gradient_checkpointing}"
    if execution.layout.ep > 1 and execution.recompute == "selective":
        reasons.append(f"{recompute} is not trained with ep; use full or none")
    elif execution.gradient_checkpointing == "selective_offloaded" and not (execution.compile or cut):
        reasons.append(f"{recompute} needs compile: true; use offloaded")
    if cut and execution.gradient_checkpointing != "none":
        # It would compute a block again for each of its weights' gradients, which it asks for one by one.
        asked = f"gradient_checkpointing: {execution.gradient_checkpointing}"
        reasons.append(f"schedule zero_bubble is not trained with {asked}; use none, or schedule: 1f1b")
    return reasons + _optimizer_elsewhere(execution)


def _optimizer_elsewhere(execution: Execution) -> list[str]:
    """What optimizers that are not elementwise are not trained with."""
    asked = f"optimizer {execution.optimizer}"
    if execution.optimizer in ("adamw_8bit", "adafactor") and execution.optimizer_on_host:
        return [f"{asked} is not trained with offload; use optimizer: adamw, or offload: none"]
    if execution.optimizer == "adamw_8bit" and execution.layout.tp > 1:
        # Slices of columns would cut blocks that share a scale.
        return [f"{asked} is not trained under {execution.layout.strategy}; use optimizer: adamw, or fsdp"]
    return []


def _eager_under(layout: Layout) -> str | None:
    """Why blocks are not compiled under a layout; None where they are."""
    if layout.pp > 1 and layout.schedule == "zero_bubble":
        return "compile is not trained with schedule zero_bubble"  # it cuts backwards, and a compiled one is a whole
    return f"compile is not trained under {layout.strategy}" if layout.tp * layout.cp > 1 else None


def not_compiled(job: Job, layout: Layout, model: ModelShape) -> str | None:
    """Why `compile: auto` runs blocks eagerly on GPUs; None where tests train such blocks compiled."""
    kernel = job.train.attn_implementation
    if job.method == "qlora":
        return _QLORA_COMPILED
    if model.has_experts:
        return _EXPERTS_COMPILED
    if model.built is not None:
        return f"no test has compiled {model.family}"
    if kernel not in ("auto", "sdpa", "eager", "varlen"):
        return f"no test has compiled {kernel}"
    return _eager_under(layout)


def refused_everywhere(job: Job, model: ModelShape) -> list[str]:
    """Why a model is trained under no layout; empty where some layout may train it."""
    experts = f"{model.family} {NO_EXPERTS}"
    return [*([experts] if forecast_only(model) else []), *_not_quantised(job, model), *follows_the_batch(job, model)]


def _not_quantised(job: Job, model: ModelShape) -> list[str]:
    if job.method != "qlora" or job.adapters is None:
        return []
    reasons: list[str] = []
    matrices = [matrix for kind in model.kinds for matrix in kind.matrices]
    if any(matrix.transposed for matrix in matrices):
        reasons.append(f"method qlora does not quantise the transposed matrices of {model.family}; use lora")
    if model.family in OWN_LINEAR_LAYERS:
        reasons.append(f"method qlora does not quantise {model.family}, whose linear layers are no nn.Linear; use lora")
    linear = [m for m in (*matrices, *model.outer_matrices) if m.adaptable and not m.stacked]
    if broken := [m for m in linear if m.rows * m.columns % NF4_BLOCK]:
        one = broken[0]
        shape = f"{one.name}, a matrix of {one.rows} x {one.columns}"
        reasons.append(f"method qlora does not quantise {shape}: it has no whole blocks of {NF4_BLOCK}; use lora")
    copied = [name for name in job.adapters.modules_to_save if any(names_it(m.name, name) for m in matrices)]
    if copied:
        reasons.append(f"method qlora trains no copy of a quantised matrix; lora.modules_to_save names {copied[0]}")
    if job.adapters.use_dora:
        reasons.append("method qlora is not trained with lora.use_dora; use method: lora, or leave DoRA out")
    return reasons


def adapts_experts(job: Job, model: ModelShape) -> bool:
    """Whether LoRA hangs adapters on stacked experts."""
    lora = job.adapters
    stacks = ((kind, m) for kind in model.kinds for m in kind.matrices if m.stacked)
    return lora is not None and any(hold_of(m, lora, kind) for kind, m in stacks)


def not_trained(job: Job, execution: Execution, *, model: ModelShape | None = None) -> list[str]:
    """What of an execution is planned but not trained; empty where all is trained."""
    # Of what no layout trains, the nearest to one would not be trained either.
    known = None if model is None or forecast_only(model) else as_trained(job, model)
    of_layout = refusal(method=job.method, layout=execution.layout, model=known, stated=True)
    reasons = [of_layout, *not_trained_under(execution)]
    if job.method == "qlora" and execution.compile:
        reasons.append(f"{_QLORA_COMPILED}; use compile: false")
    if model is not None and execution.layout.ep > 1 and adapts_experts(job, model):
        reasons.append("ep is not trained with adapters on the experts; name other lora.target_modules, or write ep: 1")
    if model is not None and model.has_experts and execution.compile:
        reasons.append(f"{_EXPERTS_COMPILED}; use compile: false")
    if model is not None:
        reasons += refused_everywhere(job, model)
    chosen: list[tuple[str, str, Sequence[str]]] = [
        ("precision", execution.precision, PRECISIONS),
        ("optimizer", execution.optimizer, OPTIMIZERS),
        ("offload", execution.offload, OFFLOADS),
    ]
    for key, value, trained in chosen:
        if value not in trained:
            reasons.append(f"{key} {value} is not trained by this version; use {', '.join(trained)}")
    return [reason for reason in reasons if reason]
