"""What the trainer accepts: one table, read by the planner and by the trainer.

There are two levels. What is trained is all that `auto` ever chooses. What a user asks for by name (a method, an
optimizer, a model, a layout) is forecast too where a forecast can be made, with a sentence that says that this version
plans it and does not train it; the trainer refuses it before it loads any weight.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.spec.batch import follows_the_batch, follows_the_layout
from shardwise.spec.execution import Execution, Offload, OptimizerName, Precision
from shardwise.spec.job import Job, Method
from shardwise.spec.layout import Layout
from shardwise.spec.model import ModelShape
from shardwise.spec.nearest import nearest_layout
from shardwise.spec.splits import STAGED_FAMILIES, as_trained, heads, most_slices, splits, unseen, without_dropout

#: Way of spreading -> methods that train under it, with the same result as on one process. A product of ways, such as
#: `fsdp x pp`, trains what each of them does.
TRAINABLE: dict[str, tuple[str, ...]] = {
    "single": ("full", "lora"),
    "ddp": ("full", "lora"),
    "zero1": ("full", "lora"),
    "zero2": ("full", "lora"),
    "fsdp": ("full", "lora"),
    "hsdp": ("full", "lora"),
    "tp": ("full", "lora"),
    "mp": ("full", "lora"),
    "pp": ("full", "lora"),
}

PRECISIONS: tuple[Precision, ...] = ("mixed", "bf16", "fp32")
OPTIMIZERS: tuple[OptimizerName, ...] = ("adamw", "adamw_foreach", "sgd")
OFFLOADS: tuple[Offload, ...] = ("none", "optimizer", "parameters", "all")

#: What is said of a mixture of experts, whatever its layout.
NO_EXPERTS = "is a mixture of experts, which is not trained by this version"

#: What stands in for a method that is not trained at all, where the question is which layouts there are.
NEAREST_METHOD: Method = "lora"


def refusal(*, method: str, layout: Layout, model: ModelShape | None = None, stated: bool = False) -> str | None:
    """Why a layout cannot be trained with a method, and the nearest one that can; None where it can.

    Args:
        method: by its name.
        layout: any.
        model: whose family must be proven under the layout, where it is known.
        stated: a job states the layout: what the model cannot be cut into is answered with one of as many ranks.
    """
    of_model = None if model is None else _model_refusal(model, layout, stated=stated)
    return way_refusal(method=method, layout=layout) or of_model or _schedule_refusal(layout)


def way_refusal(*, method: str, layout: Layout) -> str | None:
    """Why a way of spreading is not trained with a method, whatever the model; None where it is."""
    for way in layout.strategy.split(" x "):
        if way not in TRAINABLE:
            nearest = "fsdp" if layout.dp_shard > 1 or layout.tp > 1 or layout.pp > 1 or layout.cp > 1 else "ddp"
            return f"{layout.strategy} is not trained by this version; the nearest layout that is: {nearest}"
        if method not in TRAINABLE[way]:
            return method_refusal(method) or (
                f"method {method} is not trained by this version under {way}; the nearest that is: {NEAREST_METHOD}"
            )
    return None


def method_refusal(method: str) -> str | None:
    """Why a method is trained under no layout at all; None where some layout trains it."""
    if any(method in methods for methods in TRAINABLE.values()):
        return None
    return f"method {method} is not trained by this version; the nearest that is: {NEAREST_METHOD}"


def _schedule_refusal(layout: Layout) -> str | None:
    if layout.schedule == "zero_bubble" and layout.weight_shards > 1 and layout.reshard_after_forward:
        # The deferred half of a cut backward comes when weights would have been let go of.
        return "schedule zero_bubble keeps gathered weights until a step ends; write zero_stage: 2, or schedule: 1f1b"
    return None


def _unsplit(model: ModelShape, layout: Layout) -> str | None:
    """Why no other degrees of a layout's ways would be trained either: by the family, and by what is dropped out."""
    of_family = _not_sliced(model, layout) or _not_staged(model, layout)
    return "; ".join(_present(of_family, _skips(model, layout))) or None


def _skips(model: ModelShape, layout: Layout) -> str | None:
    if not model.layerdrop or layout.world_size == 1:
        return None
    return (
        f"layerdrop {model.layerdrop:g} is not trained on several ranks: each would leave out other blocks, and "
        "wait for ever for what the others exchange of them; the nearest layout that trains it: one process, or "
        "set train.disable_dropout: true"
    )


def _not_sliced(model: ModelShape, layout: Layout) -> str | None:
    # A build that no degree slices evenly was not looked at sliced: that, and not the family, is what is wrong.
    if layout.tp == 1 or splits(model, "slices") or (model.built is not None and most_slices(model) == 1):
        return None
    nearest = _nearest(model, layout)
    return unseen(model, "slices", nearest=nearest) or (
        f"{model.family} is not sliced by tensor parallel (tp) in this version; "
        f"the nearest layout that trains it: {nearest}"
    )


def _nearest(model: ModelShape, layout: Layout) -> str:
    """The nearest layout, and what else several ranks ask of a model that leaves blocks out."""
    return nearest_layout(model, layout) + (", with train.disable_dropout: true" if model.layerdrop else "")


def _not_staged(model: ModelShape, layout: Layout) -> str | None:
    if layout.pp == 1 or splits(model, "stages"):
        return None
    nearest = _nearest(model, layout)
    return unseen(model, "stages", nearest=nearest) or (
        f"{model.family} is not cut in pipeline stages by this version, which does {', '.join(STAGED_FAMILIES)}; "
        f"the nearest layout that trains it: {nearest}"
    )


def misfit(model: ModelShape, layout: Layout, *, stated: bool = False) -> str | None:
    """Why a model cannot be spread by a layout at all; None where it can.

    Args:
        model: as the job trains it.
        layout: any.
        stated: a job states it: the reason ends with the nearest one of as many ranks.
    """
    uneven = _present(_uneven(layout.tp, model, heads(model)), _too_many_stages(model, layout))
    if not uneven:
        return None
    if model.has_experts:  # which are planned only, under any degrees that come out even
        return _mended(model, layout, uneven, stated=stated)
    return _cut_refusal(model, layout, uneven, stated=stated)


def _model_refusal(model: ModelShape, layout: Layout, *, stated: bool) -> str | None:
    """Why a model is not trained under a layout, of so many stages as it has blocks or fewer."""
    parts = {**heads(model), "elements of the MLP's width": model.intermediate_size}
    return _cut_refusal(model, layout, _present(_uneven(layout.tp, model, parts)), stated=stated)


def _cut_refusal(model: ModelShape, layout: Layout, uneven: list[str], *, stated: bool) -> str | None:
    """Of what does not come out even, only what is worth mending: not where other degrees would be refused too."""
    unsplit = _unsplit(model, layout)
    if unsplit is None:
        return _mended(model, layout, uneven, stated=stated) if uneven else None
    worth = uneven if _unsplit(without_dropout(model), layout) is None else []
    return "; ".join([*worth, unsplit])


def _mended(model: ModelShape, layout: Layout, uneven: list[str], *, stated: bool) -> str:
    nearest = [f"the nearest layout of as many ranks: {nearest_layout(model, layout)}"] if stated else []
    return "; ".join([*uneven, *nearest])


def _present(*reasons: str | None) -> list[str]:
    return [reason for reason in reasons if reason]


def _uneven(tp: int, model: ModelShape, parts: dict[str, int]) -> str | None:
    """Which of the parts `tp` does not divide, and the largest that divides all of the model; None where it does."""
    uneven = [f"{count} {what}" for what, count in parts.items() if count % tp]
    if not uneven:
        return None
    most = most_slices(model)
    remedy = f"the largest tp that slices it evenly is {most}" if most > 1 else "no tp slices it evenly: use fsdp"
    return f"tp = {tp} does not divide the model's {' and '.join(uneven)}; {remedy}"


def _too_many_stages(model: ModelShape, layout: Layout) -> str | None:
    if layout.num_stages <= model.num_layers:
        return None
    return f"{layout.num_stages} pipeline stages for {model.num_layers} layers; {_fewer_stages(model, layout)}"


def _fewer_stages(model: ModelShape, layout: Layout) -> str:
    """The most pipeline ranks whose stages have a block each; one rank is no pipeline, and has no schedule."""
    most = model.num_layers * layout.pp // layout.num_stages
    if most > 1:
        return f"use pp: {most} at most"
    return f"use schedule: 1f1b and pp: {model.num_layers} at most" if model.num_layers > 1 else "use fsdp"


def open_refusal(*, method: Method, layout: Layout, model: ModelShape | None = None) -> str | None:
    """Why `layout: auto` leaves a layout out; None where it considers it.

    A method or a model that is trained under no layout at all was asked for all the same: it is forecast under every
    layout that trains another one.
    """
    known = None if model is None or model.has_experts else model
    return refusal(method=method if method_refusal(method) is None else NEAREST_METHOD, layout=layout, model=known)


def execution_refusals(job: Job, execution: Execution, *, model: ModelShape | None = None) -> list[str]:
    """Every reason why an execution of a job cannot be trained; empty where it can.

    Args:
        model: the job's model, where it has been read already.
    """
    return [*impossibilities(job, execution, model=model), *not_trained(job, execution, model=model)]


def impossibilities(job: Job, execution: Execution, *, model: ModelShape | None = None) -> list[str]:
    """What contradicts itself in an execution, or would train another model: it is neither trained nor planned."""
    reasons: list[str] = []
    layout = execution.layout
    if model is not None and layout.num_stages > model.num_layers:
        reasons.append(
            f"{layout.strategy} makes {layout.num_stages} stages, and the model has {model.num_layers} blocks; "
            + _fewer_stages(model, layout)
        )
    if execution.parameters_on_host:
        reasons += _streaming_contradictions(execution)
    if job.data.packing and execution.attn_implementation.startswith("flash") and execution.micro_batch_size > 1:
        # transformers tells packed documents apart by their positions for one sequence at a time only.
        reasons.append(f"packing with {execution.attn_implementation} needs train.micro_batch_size: 1, or use sdpa")
    if model is not None and execution.loss == "chunked" and not model.plain_head:
        reasons.append(f"{model.family} caps or scales its logits, which loss: chunked does not do; use loss: full")
    if model is not None:
        reasons += follows_the_layout(job, model, layout)
    return reasons


def _streaming_contradictions(execution: Execution) -> list[str]:
    """What does not go with weights that come from the host as they are used."""
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
    reasons: list[str] = []
    cut = execution.layout.pp > 1 and execution.layout.schedule == "zero_bubble"
    if execution.compile and (cut or execution.layout.tp > 1):
        what = "with schedule zero_bubble" if cut else f"under {execution.layout.strategy}"
        reasons.append(f"compile is not trained {what}; use compile: false")
    if cut and execution.gradient_checkpointing == "selective":
        reasons.append("schedule zero_bubble is not trained with gradient_checkpointing: selective; use full or none")
    return reasons


def refused_everywhere(job: Job, model: ModelShape) -> list[str]:
    """Why a job is trained under no layout at all, by what its model is; empty where some layout may train it."""
    experts = f"{model.family} {NO_EXPERTS}"
    return [*([experts] if model.has_experts else []), *follows_the_batch(job, model)]


def not_trained(job: Job, execution: Execution, *, model: ModelShape | None = None) -> list[str]:
    """What an execution asks for that this version can plan but does not train; empty where it trains all of it."""
    # Of experts no layout is trained: the nearest to one would not be either.
    known = None if model is None or model.has_experts else as_trained(job, model)
    of_layout = refusal(method=job.method, layout=execution.layout, model=known, stated=True)
    reasons = [of_layout, *not_trained_under(execution)]
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
