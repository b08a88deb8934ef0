"""What the trainer accepts, by the rows of one table, for planner and trainer alike.

`auto` chooses only what is trained. What a user asks for by name is forecast even where it is not
trained, with a sentence that says so; the trainer refuses it before it loads any weight.
"""

from dataclasses import replace

from shardwise.spec.job.keys import Job, Method
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.support import rows
from shardwise.spec.support.attention import documents_refusal
from shardwise.spec.support.rows import Reason, Row, first, reasons
from shardwise.spec.support.splits import as_trained, heads, widths

#: Ways of spreading that are trained, with the result of one process; also products: `fsdp x pp`.
TRAINED_WAYS = ("single", "ddp", "zero1", "zero2", "fsdp", "hsdp", "tp", "mp", "pp", "cp", "ep")

#: Tokens of a row on one rank, from which on `auto` computes MLPs in tiles.
_LONG = 16384

_EXPERTS_COMPILED = "compile is not trained with a mixture of experts"
_QLORA_COMPILED = "compile is not trained with method qlora"


def refusal(*, method: Method, layout: Layout, model: ModelShape | None = None, stated: bool = False) -> str | None:
    """Why a layout cannot be trained with a method; None where it can. `model`: whose family must
    be trained under the layout, where it is known. `stated`: whether a job states the layout; then
    the reason ends with what to write instead."""
    of_model = None if model is None else _model_refusal(model, layout, method=method, stated=stated)
    return first(rows.of_layout(layout)) or of_model or first(rows.schedule(layout, model))


def _model_refusal(model: ModelShape, layout: Layout, *, method: Method, stated: bool) -> str | None:
    """Why a model is not trained under a layout with no more stages than the model has blocks."""
    parts = {**heads(model), **widths(model)} if layout.tp > 1 else {}
    sliced, staged = rows.of_family(model, layout)
    sliced += rows.of_slices(model, layout, parts)
    cuts = rows.quantised_cuts(model, layout) if method == "qlora" else ()
    dealt = first(rows.of_experts(model, layout, quantised=method == "qlora"))
    apart = [*rows.left_out(model, layout), *rows.shared(model, layout)]
    found = [first([*sliced, *cuts]), first(staged), *reasons(rows.in_parts(model, layout)), dealt, *reasons(apart)]
    return _joined(found, stated=stated)


def misfit(model: ModelShape, layout: Layout, *, stated: bool = False) -> str | None:
    """Why a model cannot be spread by a layout at all; None where it can. `model`: as the job
    trains it. `stated`: whether a job states the layout; the reason then ends with what to do."""
    uneven = first(rows.of_slices(model, layout, heads(model))) if layout.tp > 1 else None
    stages = first(rows.of_blocks(model, layout))
    if uneven is None and stages is None:
        return None
    sliced, staged = rows.of_family(model, layout)
    found = [first(sliced) or uneven, first(staged) or stages, *reasons(rows.left_out(model, layout))]
    return _joined(found, stated=stated)


def _joined(found: list[Reason | None], *, stated: bool) -> str | None:
    """The reasons in one sentence; with a layout to write, where none of them names one."""
    said = [reason for reason in found if reason]
    told = not stated or any(reason.row.names_layout for reason in said)
    return "; ".join([*said, *([] if told else ["or use fsdp"])]) if said else None


def execution_refusals(job: Job, execution: Execution, *, model: ModelShape | None = None) -> list[str]:
    """Every reason why an execution of a job cannot be trained; empty where it can."""
    return [*impossibilities(job, execution, model=model), *not_trained(job, execution, model=model)]


def impossibilities(job: Job, execution: Execution, *, model: ModelShape | None = None) -> list[str]:
    """What contradicts itself in an execution: it is neither trained nor planned."""
    streamed = first(rows.of_streams(execution))
    if model is None:
        return [streamed] if streamed else []
    kernel = f"attn_implementation {execution.attn_implementation}"
    lacking = documents_refusal(job, model, execution.attn_implementation)
    untold = [Row(True, f"{kernel} {lacking}", "use sdpa", "train.attn_implementation")] if lacking else []
    found = [first(rows.of_blocks(model, execution.layout)), streamed]
    rest = reasons([*untold, *rows.of_padding(job, model, execution.layout)])
    return [*(reason for reason in found if reason), *rest]


def not_trained_under(execution: Execution) -> list[str]:
    """What an execution asks for that is trained, but not under its layout."""
    compiled = first(rows.compiled(execution.layout)) if execution.compile else None
    return [*([compiled] if compiled else []), *reasons(rows.of_choices(execution))]


def not_compiled(job: Job, layout: Layout, model: ModelShape) -> str | None:
    """Why `compile: auto` runs blocks eagerly on GPUs; None if tests train such blocks compiled."""
    kernel = job.train.attn_implementation
    if job.method == "qlora" or model.has_experts:
        return _QLORA_COMPILED if job.method == "qlora" else _EXPERTS_COMPILED
    if model.built is not None or kernel not in ("auto", "sdpa", "eager", "varlen"):
        return f"no test has compiled {kernel if model.built is None else model.family}"
    reason = first(rows.compiled(layout))
    return None if reason is None else reason.row.what


def refused_everywhere(job: Job, model: ModelShape) -> list[Reason]:
    """Why a model is trained under no layout; empty where some layout may train it."""
    return list(reasons([*rows.of_qlora(job, model), *rows.of_rows(job, model)]))


def not_trained(job: Job, execution: Execution, *, model: ModelShape | None = None) -> list[str]:
    """What of an execution is planned but not trained; empty where all is trained."""
    known = None if model is None else as_trained(job, model)
    of_layout = refusal(method=job.method, layout=execution.layout, model=known, stated=True)
    instead = "use compile: false"
    compiles_experts = execution.compile and model is not None and model.has_experts
    of_method = [
        Row(job.method == "qlora" and execution.compile, _QLORA_COMPILED, instead, "train.compile"),
        Row(compiles_experts, _EXPERTS_COMPILED, instead, "train.compile"),
        *([] if model is None else [rows.of_experts_products(model, execution)]),
    ]
    everywhere = [] if model is None else refused_everywhere(job, model)
    tiles = [] if known is None else reasons(rows.of_tiles(job, execution, known))
    found = [*([of_layout] if of_layout else []), *not_trained_under(execution), *reasons(of_method)]
    return [*found, *tiles, *everywhere]


def tiles_mlp(job: Job, execution: Execution, model: ModelShape) -> bool:
    """Whether `mlp: auto` computes the MLP in tiles: of long rows, where that is trained."""
    if job.data.max_length // execution.layout.cp < _LONG:
        return False
    return not reasons(rows.of_tiles(job, replace(execution, mlp="chunked"), as_trained(job, model)))


def rehearsal_refusals(execution: Execution, model: ModelShape) -> list[Reason]:
    """Why an execution cannot be rehearsed: PyTorch does not run it on tensors without numbers.
    Blocks that it compiles are rehearsed eager, for the compiler chooses what a block keeps."""
    kernel, kind, recompute = execution.attn_implementation, execution.gradient_checkpointing, execution.recompute
    apart = "is not rehearsed: a rehearsal does not tell the host's memory from the GPU's"
    routed = "is not rehearsed: which expert a token goes to is a number, and rehearsed tensors have none"
    lacks, sdpa = f"{kernel} is not rehearsed: it has kernels for GPUs alone", "write train.attn_implementation: sdpa"
    kept, resident = f"write train.gradient_checkpointing: {recompute}", "write train.offload: none"
    return reasons(
        [
            Row(execution.offload != "none", f"offload {execution.offload} {apart}", resident),
            Row(execution.saves_on_host, f"gradient_checkpointing {kind} {apart}", kept),
            Row(model.has_experts, f"{model.family} {routed}"),
            Row(kernel not in ("sdpa", "eager", "varlen"), lacks, sdpa),
        ]
    )
