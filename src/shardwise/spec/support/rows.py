"""What is not trained, as a table: when a row applies, what it says, the remedy, the job's key"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Self

from shardwise.spec.adapters.targets import names_it
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout, dim_of_shard
from shardwise.spec.layout.execution import Execution
from shardwise.spec.model.shape import Matrix, ModelShape
from shardwise.spec.support.splits import (
    MASKED_WITHOUT_POSITIONS,
    NOT_IN_PARTS,
    PLANNED_STAGES,
    mlp_module,
    most_slices,
    splits,
)

#: Elements that share a scale in NF4 (Dettmers et al., 2023): tensor parallelism cuts between them.
NF4_BLOCK = 64
#: Scales that share a float32 level, where they are quantised too.
NF4_GROUP = 256

#: Families whose linear layers are of a class of their own, which bitsandbytes passes over.
OWN_LINEAR_LAYERS = ("falcon",)

_EAGER = "use compile: false"


class Row(NamedTuple):
    """A rule. `when`: whether it applies; `what`, `remedy`: its sentence; `key`: of the job, as
    `train.compile`; `names_layout`: the remedy names a layout that is trained."""

    when: object
    what: str
    remedy: str = ""
    key: str = "layout"
    names_layout: bool = True


class Reason(str):
    """The sentence of a row that applies."""

    row: Row

    @classmethod
    def of(cls, row: Row) -> Self:
        """What a row says."""
        reason = cls(f"{row.what}; {row.remedy}" if row.remedy else row.what)
        reason.row = row
        return reason


def nf4_scale_bytes(elements: int) -> int:
    """Bytes of the scales of one expert's NF4 matrix, and of their levels, one added to all."""
    blocks = elements // NF4_BLOCK
    return blocks + 4 * (-(-blocks // NF4_GROUP) + 1)


def in_nf4(matrix: Matrix, *, experts: bool) -> bool:
    """Whether qlora quantises a matrix, `experts` where they are stacked and of whole blocks."""
    return experts and matrix.rows * matrix.columns % NF4_BLOCK == 0 if matrix.stacked else matrix.adaptable


def reasons(rows: Iterable[Row]) -> list[Reason]:
    """What those rows say that apply."""
    return [Reason.of(row) for row in rows if row.when]


def first(rows: Iterable[Row]) -> Reason | None:
    """What the first of them says."""
    return next((Reason.of(row) for row in rows if row.when), None)


def _is_cut(layout: Layout) -> bool:
    return layout.pp > 1 and layout.schedule == "zero_bubble"


def _nearest(model: ModelShape) -> str:
    return "fsdp, with train.disable_dropout: true" if model.layerdrop else "fsdp"


def of_experts(model: ModelShape, layout: Layout, *, quantised: bool = False) -> Iterator[Row]:
    """Why a model's experts are not dealt among ranks; `quantised` ones are not cut inside."""
    if layout.ep == 1:
        return
    ep, shards = layout.ep, max(1, layout.shard_degree // layout.ep)
    stacks = [m for kind in model.kinds for m in kind.matrices if m.stacked]
    deals = f"ep = {ep} deals experts among ranks, and {model.family} has none"
    yield Row(not stacks, deals, "write ep: 1, or use fsdp")
    given_all = f"{model.family} runs every token through every expert, and ep sends tokens to those of their routes"
    yield Row(any(m.runs_all for m in stacks), given_all, "use fsdp, or tp")
    unlike = any(len({m.count for m in kind.matrices if m.stacked}) > 1 for kind in model.kinds)  # LongCat-Flash
    yield Row(unlike, f"ep deals no experts whose matrices differ in number, as those of {model.family} do", "use fsdp")
    for m in stacks:
        yield Row(m.count % ep, f"ep = {ep} does not divide the {m.count} experts of each block", names_layout=False)
        shape = (m.count // ep, *((m.columns, m.rows) if m.transposed else (m.rows, m.columns)))
        uneven = f"the {shape[0]} experts of a rank under ep = {ep} are not cut evenly over {shards} shards"
        cut = shape[0] if quantised else shape[dim_of_shard(shape, degree=shards)]
        yield Row(cut % shards, uneven, names_layout=False)


def of_family(model: ModelShape, layout: Layout) -> tuple[list[Row], list[Row]]:
    """Why a model is not sliced, and why it is not cut in stages, whatever the degrees."""
    built, family, nearest = model.built, model.family, _nearest(model)
    sliced = layout.tp > 1 and not splits(model, "slices")
    staged = layout.pp > 1 and not splits(model, "stages")
    others = (m.reads == "other" for kind in model.kinds for m in kind.matrices)
    differs = layout.tp > 1 and model.drops_out and (model.has_experts or any(others))
    both = layout.tp > 1 and layout.pp > 1 and (built is not None or family not in PLANNED_STAGES)
    if not (sliced or staged or differs or both):
        return [], []
    trained = f"the nearest layout that trains it: {nearest}"
    why = f": {model.unsliced}" if model.unsliced else " in this version"
    unstaged = f"{family} is not cut in pipeline stages: {model.unstaged}"
    return [
        Row(sliced, f"{family} is not sliced by tensor parallel (tp){why}", trained),
        Row(
            differs,
            f"{family} drops something out at random, which ranks of tp would do otherwise in what each computes whole",
            f"set train.disable_dropout: true, or use {nearest}",
        ),
        Row(both, f"{family} is not both sliced (tp) and cut in stages (pp) by this version", "leave one of them out"),
    ], [Row(staged, unstaged, trained)]


def of_slices(model: ModelShape, layout: Layout, parts: dict[str, int]) -> list[Row]:
    """Why `tp` does not divide some of the parts."""
    odd = [f"{count} {what}" for what, count in parts.items() if count % layout.tp]
    if not odd:
        return []
    most, uneven = most_slices(model), f"tp = {layout.tp} does not divide the model's {' and '.join(odd)}"
    return [
        Row(most > 1, uneven, f"the largest tp that slices it evenly is {most}", names_layout=False),
        Row(True, uneven, "no tp slices it evenly: use fsdp"),
    ]


def of_blocks(model: ModelShape, layout: Layout) -> list[Row]:
    """Why there are more stages than blocks. `most`: ranks whose stages have a block each."""
    stages, blocks = layout.num_stages, model.num_layers
    if stages <= blocks:
        return []
    most, what = blocks * layout.pp // stages, f"{stages} pipeline stages for {blocks} layers"
    return [
        Row(most > 1, what, f"use pp: {most} at most", names_layout=False),
        Row(blocks > 1, what, f"use schedule: 1f1b and pp: {blocks} at most", names_layout=False),
        Row(True, what, "use fsdp"),
    ]


def quantised_cuts(model: ModelShape, layout: Layout) -> Iterator[Row]:
    """Which matrices `tp` cuts in quantised blocks; whether each shard has whole experts."""
    tp, shards = layout.tp, layout.weight_shards
    for m in model.sliced if tp > 1 else ():
        if m.stacked:
            left = f"the {m.count // tp} experts of a rank under tp = {tp} are not cut evenly over {shards} shards"
            yield Row(m.count // tp % shards, left, names_layout=False)
            continue
        cut = f"tp = {tp} cuts blocks of {NF4_BLOCK} quantised elements in rows of {m.name}"
        yield Row(m.columns % (NF4_BLOCK * (tp if m.sliced_by == "columns" else 1)), cut, "use fsdp")


def in_parts(model: ModelShape, layout: Layout) -> list[Row]:
    """Why sequences are not cut in parts; attention's backward makes no dropped scores again."""
    if layout.cp == 1:
        return []
    whole = model.attention_softcap or model.eager_attention or model.family in NOT_IN_PARTS
    # What joins tokens beside attention (recurrences, convolutions) would see a rank's parts alone.
    whole = whole or model.mixes_documents or (model.has_experts and model.built is not None)
    what = f"{model.family} is not trained on parts of sequences (cp) by this version"
    scores = f"{model.family} drops attention's scores out at random, which is not trained with cp"
    return [
        Row(whole, what, f"the nearest layout that trains it: {_nearest(model)}"),
        Row(model.drops_scores and model.drops_out, scores, "set train.disable_dropout: true"),
    ]


def left_out(model: ModelShape, layout: Layout) -> list[Row]:
    """Why blocks are not left out at random."""
    if not model.layerdrop or layout.world_size == 1:
        return []
    what = (
        f"layerdrop {model.layerdrop:g} is not trained on several ranks: each would leave out other blocks, and wait "
        "for ever for what the others exchange of them"
    )
    return [Row(True, what, "the nearest layout that trains it: one process, or set train.disable_dropout: true")]


def shared(model: ModelShape, layout: Layout) -> list[Row]:
    """Why weights that blocks share are not sharded: FSDP gathers and frees them block by block."""
    if not model.shares_weights or layout.weight_shards == 1:
        return []
    what = f"blocks of {model.family} share weights, which FSDP does not gather for several blocks"
    return [Row(True, what, "the nearest layout that trains it: ddp or zero1")]


def of_layout(layout: Layout) -> list[Row]:
    """Why experts are not dealt among ranks under a layout, whatever the model."""
    if layout.ep == 1:
        return []
    apart, copied = "leave one of them out", layout.shards_states_only and layout.copies > 1
    zero1 = "ep is not trained with zero1 over several copies of the weights (dp_replicate, shard_over_cp: false)"
    return [
        Row(layout.tp > 1, "ep is not trained with tp by this version", apart),
        Row("cp" in layout.copied_over, "ep is not trained with shard_over_cp: false", apart),
        Row(copied, zero1, "shard over all of these ranks, or use fsdp, zero2 or ddp with it"),
    ]


def schedule(layout: Layout, model: ModelShape | None) -> list[Row]:
    """Why a schedule does not go with sharded weights, or with weights that are used twice, whose
    gradients torch.distributed.pipelining does not make apart from those of inputs."""
    # The deferred half of a cut backward comes when weights would have been let go of.
    gathered = layout.schedule == "zero_bubble" and layout.weight_shards > 1 and layout.reshard_after_forward
    what = "schedule zero_bubble keeps gathered weights until a step ends"
    twice = model is not None and model.runs_twice and _is_cut(layout)
    used = f"schedule zero_bubble is not trained for {model.family if model else ''}, whose blocks use a weight twice"
    return [Row(gathered, what, "write zero_stage: 2, or schedule: 1f1b"), Row(twice, used, "use schedule: 1f1b")]


def compiled(layout: Layout) -> list[Row]:
    """Why blocks are not compiled under a layout: a cut backward is no whole."""
    if layout.tp == 1 and not _is_cut(layout):
        return []
    cut, key = "compile is not trained with schedule zero_bubble", "train.compile"
    under = f"compile is not trained under {layout.strategy}"
    return [Row(_is_cut(layout), cut, _EAGER, key), Row(layout.tp > 1, under, _EAGER, key)]


def of_tiles(job: Job, execution: Execution, model: ModelShape) -> list[Row]:
    """Why the MLP is not computed in tiles."""
    if execution.mlp == "full":
        return []
    asked, use, key = "mlp chunked", "use mlp: full", "train.mlp"
    drops = (job.adapters is not None and job.adapters.lora_dropout) or model.drops_out
    return [
        Row(mlp_module(model) is None, f"{asked} is not trained for {model.family}", use, key),
        Row(execution.recompute != "full", f"{asked} needs gradient_checkpointing full or offloaded", use, key),
        Row(execution.layout.tp > 1, f"{asked} is not trained under {execution.layout.strategy}", use, key),
        Row(drops, f"{asked} is not trained with dropout, which would draw anew for each tile", use, key),
    ]


def of_choices(execution: Execution) -> Iterator[Row]:
    """What is trained, but not under an execution's layout or with its other choices."""
    layout, kind, kernel = execution.layout, execution.gradient_checkpointing, execution.attn_implementation
    selective, dealt, cut = execution.recompute == "selective", layout.ep > 1, _is_cut(layout)
    rule, on_host, key = execution.optimizer_rule, execution.optimizer_on_host, "train.gradient_checkpointing"
    if layout.splits_rows and kernel != "sdpa":
        what = f"attn_implementation {kernel} is not trained under {layout.strategy}"
        yield Row(True, what, "use sdpa", "train.attn_implementation")
    recompute = f"gradient_checkpointing {kind}"
    if dealt and selective:
        yield Row(True, f"{recompute} is not trained with ep", "use full or none", key)
    if selective and execution.compile and execution.breaks_graphs:
        yield Row(True, f"{recompute} is not trained with compile under cp", "use full or none", key)
    if kind == "selective_offloaded" and not (execution.compile or cut or dealt):
        yield Row(True, f"{recompute} needs compile: true", "use offloaded", key)
    if cut and kind != "none":  # it would compute a block again for each of its weights' gradients
        what = f"schedule zero_bubble is not trained with gradient_checkpointing: {kind}"
        yield Row(True, what, "use none, or schedule: 1f1b")
    optimizer = f"optimizer {execution.optimizer}"
    if on_host and not rule.elementwise:
        ways = "use optimizer: adamw, or offload: none"
        yield Row(True, f"{optimizer} is not trained with offload", ways, "train.optimizer")
    if rule.in_8_bits and layout.tp > 1 and not on_host:  # slices of columns would cut blocks that share a scale
        what = f"{optimizer} is not trained under {layout.strategy}"
        yield Row(True, what, "use optimizer: adamw, or fsdp", "train.optimizer")


def of_streams(execution: Execution) -> list[Row]:
    """What contradicts streaming weights from the host; a cut backward would gain nothing."""
    if not execution.parameters_on_host:
        return []
    asked, key, layout = f"offload {execution.offload}", "train.offload", execution.layout
    kept = f"{asked} brings weights to the GPU as they are used, and zero1 keeps them there"
    cut, whole = f"{asked} does not go with schedule zero_bubble", "use schedule: 1f1b, or offload: optimizer"
    return [Row(layout.shards_states_only, kept, "use offload: optimizer", key), Row(_is_cut(layout), cut, whole, key)]


def packed(model: ModelShape) -> Row:
    """Why documents of one sequence are not kept apart."""
    what = f"packing is not trained for {model.family}, whose code in transformers lets packed documents see each other"
    untold = model.family in MASKED_WITHOUT_POSITIONS or model.mixes_documents
    return Row(untold, what, "use packing: false", "data.packing")


def of_rows(job: Job, model: ModelShape) -> list[Row]:
    """Why a row's result would depend on the rows beside it."""
    steady, length = model.steady_positions, job.data.max_length
    long = (
        f"max_length {length} is not trained: beyond {steady} tokens this model's rotary positions follow the longest "
        "sequence of a micro-batch, so that the result would depend on how the work is spread"
    )
    own = "PEFT gives each block adapters of its own, which are not counted"
    adapted = f"blocks of {model.family} share weights, and {own}"
    return [
        Row(model.untrained, model.untrained, key="model"),
        *([packed(model)] if job.data.packing else []),
        Row(model.shares_weights and job.adapters is not None, adapted, "use method: full", "method"),
        Row(steady is not None and length > steady, long, f"use max_length: {steady} or less", "data.max_length"),
    ]


def of_experts_products(model: ModelShape, execution: Execution) -> Row:
    """Why experts are not multiplied together: PyTorch does so where rows begin at 16 bytes."""
    multiple = 4 if execution.precision == "fp32" else 8
    widths = (m.columns for kind in model.kinds for m in kind.matrices if m.stacked and not m.runs_all)
    odd = next((width for width in widths if width % multiple or not width), None)
    what = f"experts that read {odd} elements are not trained in {execution.precision}: PyTorch multiplies them in "
    return Row(odd is not None, f"{what}multiples of {multiple}", key="model")


def of_padding(job: Job, model: ModelShape, layout: Layout) -> list[Row]:
    """Why padding for a layout would move rotary positions beyond the steady ones."""
    steady, multiple, length = model.steady_positions or 0, layout.sequence_multiple, job.data.max_length
    rounded, longest = -(-length // multiple) * multiple, steady // multiple * multiple
    if not length <= steady < rounded:
        return []
    what = (
        f"{layout.strategy} rounds rows up to a multiple of {multiple}, those of max_length {length} to {rounded}, and "
        f"beyond {steady} tokens this model's rotary positions follow the longest sequence of a micro-batch"
    )
    remedy = f"use max_length: {longest} or less, or another layout" if longest else "use another layout"
    return [Row(True, what, remedy)]


def of_qlora(job: Job, model: ModelShape) -> Iterator[Row]:
    """Why a model's matrices are not quantised, or not as the job asks."""
    if job.method != "qlora" or job.adapters is None:
        return
    matrices = [matrix for kind in model.kinds for matrix in kind.matrices]
    linear = (m for m in (*matrices, *model.outer_matrices) if m.adaptable and not m.stacked)
    odd = (m for m in linear if m.rows * m.columns % NF4_BLOCK)
    broken = next((f"{m.name}, a matrix of {m.rows} x {m.columns}" for m in odd), "")
    copied = [name for name in job.adapters.modules_to_save if any(names_it(m.name, name) for m in matrices)]
    quantised, use = "method qlora does not quantise", "use lora"
    transposed = any(m.transposed for m in matrices)
    yield Row(transposed, f"{quantised} the transposed matrices of {model.family}", use, "method")
    own = f"{quantised} {model.family}, whose linear layers are no nn.Linear"
    yield Row(model.family in OWN_LINEAR_LAYERS, own, use, "method")
    yield Row(broken, f"{quantised} {broken}: it has no whole blocks of {NF4_BLOCK}", use, "method")
    copies = "method qlora trains no copy of a quantised matrix"
    yield Row(copied, copies, f"lora.modules_to_save names {''.join(copied[:1])}", "method")
    dora = "method qlora is not trained with lora.use_dora"
    yield Row(job.adapters.use_dora, dora, "use method: lora, or leave DoRA out", "method")
