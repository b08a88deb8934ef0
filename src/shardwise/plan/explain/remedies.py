"""Why an execution does not fit, and what would make a job fit; each change is tried first."""

from collections.abc import Iterator
from dataclasses import replace

from shardwise.catalog.offers import has_fabric, machine_sizes, offered_hardware
from shardwise.errors import UnsupportedError
from shardwise.plan.memory import forecast_memory
from shardwise.plan.search import (
    Choice,
    Question,
    Search,
    bytes_beyond_host,
    changed,
    considered,
    of_job,
    offloads,
    on_attention,
    on_hardware,
    sized,
    sizes_on,
)
from shardwise.plan.work import BFLOAT16_BYTES, TYPES, Work, take_inventory, work_of
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Checkpointing, Execution
from shardwise.spec.layout.optimizers import OptimizerName
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.plan.forecast import MemoryForecast, Sentence
from shardwise.spec.support.rows import in_nf4
from shardwise.units import GIB, format_bytes, format_count, format_gib

_SHORTEST_LENGTH = 64
#: Checkpointing whose saved tensors wait in the host's memory, the fastest first.
_ON_HOST: tuple[Checkpointing, ...] = ("selective_offloaded", "offloaded")
_MOST_GPUS_ADVISED = 1024
#: Single GPUs that are named.
_MOST_NAMED = 3
#: GPUs of a machine, of a kind that no provider is known to rent out.
_USUAL_SIZES = [1, 2, 4, 8]
#: Numbers of nodes between one that does not hold the job and its double, which does.
_TRIED_BETWEEN = 16


def remedies(question: Question) -> Iterator[str]:
    """Sentences, the least change first; none where nothing tried would help."""
    if (length := _longest_that_fits(question)) is not None:
        yield f"data.max_length {length} would fit{_by_offload(replace(question, length=length))}"
    if question.cluster.gpu.kind != "cpu" and question.job.train.gradient_checkpointing not in _ON_HOST:
        yield from _with_saved_on_host(question)
    if (other := on_attention(question)) and (asked := _of_job(question, other[1])) and fits(asked):
        how = f"lora.target_modules: [{', '.join(other[0])}] would fit{_by_offload(asked)}"
        yield f"{how}; experts stay as they are"
    lora = question.job.model_copy(update={"method": "lora"})
    if question.job.method == "full" and (asked := _of_job(question, lora)) and fits(asked):
        yield f"method: lora would fit{_by_offload(asked)}"
    if (gpus := _gpus_that_fit(question)) is not None:
        yield f"{gpus.name} would fit{_by_offload(replace(question, cluster=gpus))}"
    if (qlora := _in_4_bits(question)) is not None:
        yield qlora
    if question.cluster.num_gpus == 1 and (smallest := _smallest_that_fit(question)):
        yield f"the smallest single GPUs that fit{_how(question)}: {', '.join(smallest)}"
    if (host := _with_more_host_memory(question)) is not None:
        yield host


def _with_saved_on_host(question: Question) -> Iterator[str]:
    """Checkpointing that saves in the host's memory, where that has room; the fastest first."""
    tried = (
        Search(replace(question, job=changed(question.job, "train", gradient_checkpointing=kind)).with_offload(offload))
        for kind in _ON_HOST
        for offload in offloads(question.job, question.cluster)
    )
    for search in tried:
        for one in search.leanest() if search.has_room else ():
            held = search.forecasts.memory.bytes_on_host(one)
            if search.forecasts.fits(one) and bytes_beyond_host(question.cluster, one, of_rank=held) is None:
                offload = "" if one.offload == "none" else f"offload: {one.offload} and "
                change = f"train.gradient_checkpointing: {one.gradient_checkpointing}"
                beside = f"with {offload}at least {format_gib(held)} for each GPU in the host's memory"
                yield f"{change} would fit, {beside}"
                return


def _of_job(question: Question, job: Job) -> Question | None:
    """The question of another job; None where no forecast is made for it."""
    try:
        return of_job(question, job)
    except UnsupportedError:
        return None


def _in_4_bits(question: Question) -> str | None:
    """A sentence on QLoRA, or how many GPUs it needs; None where a job has it or none hold it."""
    if question.job.method == "qlora" or question.cluster.gpu.kind == "cpu":
        return None
    asked = _of_job(question, question.job.model_copy(update={"method": "qlora"}))
    if asked is None:
        return None
    if fits(asked):
        return f"method: qlora would fit{_by_offload(asked)}; it rounds the frozen weights to 4 bits"
    more = _gpus_that_fit(asked)
    return None if more is None else f"method: qlora needs {more.num_gpus} GPUs ({more.name})"


def _how(question: Question) -> str:
    """With what weights and states, where a job trains all of them."""
    if question.job.method != "full":
        return f" with {question.job.method}"
    precision, optimizer = question.job.train.precision, question.job.train.optimizer
    kept = "bf16 weights without float32 masters" if precision == "bf16" else "float32 masters"
    return f" with {kept} and {'adamw' if optimizer == 'auto' else optimizer}, without offload"


def _smallest_that_fit(question: Question) -> list[str]:
    """Single GPUs on offer that hold the job without offload, the least memory first."""
    if question.cluster.gpu.kind == "cpu" or question.job.stated_layout is not None:
        return []
    offered = [sizes[0] for sizes in offered_hardware(most=1) if sizes[0].num_gpus == 1]
    found: list[str] = []
    for cluster in sorted(offered, key=lambda one: one.gpu.usable_bytes):
        if cluster.gpu.usable_bytes > question.cluster.gpu.usable_bytes and len(found) < _MOST_NAMED:
            alone = on_hardware(question, cluster).with_offload("none")
            found += [cluster.name] if Search(alone).something_fits() else []
    return found


def fits(question: Question) -> bool:
    """Whether any of the leanest executions fits, with any offload that the job leaves open."""
    most_first = reversed(offloads(question.job, question.cluster))
    return any(Search(question.with_offload(offload)).something_fits() for offload in most_first)


def _by_offload(question: Question) -> str:
    """What fitting takes of the host, where that is left open; empty where it takes nothing."""
    tried = offloads(question.job, question.cluster)
    if len(tried) == 1:
        return ""
    least = next(offload for offload in tried if Search(question.with_offload(offload)).something_fits())
    return "" if least == "none" else f" with offload: {least}"


def _with_more_host_memory(question: Question) -> str | None:
    """What a larger host would be good for: of offloads that fit, the one that takes least."""
    needs: list[tuple[int, str]] = []
    for offload in offloads(question.job, question.cluster):
        search = Search(question.with_offload(offload))
        needs += [need for one in search.leanest() if (need := search.lack_on_host(one)) is not None]
    return min(needs)[1] if needs else None


def _longest_that_fits(question: Question) -> int | None:
    """The longest sequence that fits, in steps of the shortest one considered."""
    low, high = 0, question.length // _SHORTEST_LENGTH
    while high - low > 1:
        # The first guesses are short: a stated length may be of any size.
        middle = min((low + high) // 2, 16 * low + 1)
        enough = fits(replace(question, length=middle * _SHORTEST_LENGTH))
        low, high = (middle, high) if enough else (low, middle)
    return low * _SHORTEST_LENGTH or None


def _gpus_that_fit(question: Question) -> Cluster | None:
    """More of the same GPUs on which the job fits: in one machine that is rented out, then, where a
    fabric connects them or the question names several, doubled machines and numbers between."""
    cluster = question.cluster
    if cluster.gpu.kind == "cpu" or question.job.stated_layout is not None:
        return None

    def enough(num_gpus: int) -> bool:
        return fits(replace(question, cluster=whole.part(num_gpus)))

    name, one_node = cluster.gpu.name, cluster.num_nodes == 1
    inside = [size for size in machine_sizes(name) or _USUAL_SIZES if one_node and size > cluster.node.num_gpus]
    node, network = inside[-1] if inside else cluster.node.num_gpus, cluster.network or cluster.node.link
    several = not one_node or has_fabric(name)
    whole = replace(cluster, node=replace(cluster.node, num_gpus=node), num_nodes=_MOST_GPUS_ADVISED, network=network)
    times = range(1, _MOST_GPUS_ADVISED.bit_length())
    doubled = [cluster.num_nodes << n for n in times if (cluster.num_nodes << n) * node <= _MOST_GPUS_ADVISED]
    doubled = doubled if several else []
    sizes = [*inside, *(count * node for count in doubled)]
    # What does not fit on the most GPUs fits on no fewer of them.
    if not sizes or not enough(sizes[-1]):
        return None
    in_node = next(filter(enough, inside), None)
    if in_node:
        return whole.part(in_node)
    found = next((count for count in doubled[:-1] if enough(count * node)), doubled[-1])
    between = range(found // 2 + 1, found, -(-found // (2 * _TRIED_BETWEEN)))
    return whole.part(node * next((count for count in between if enough(count * node)), found))


def left_frozen(model: ModelShape) -> str | None:
    """A sentence on what a model has beside its language model; None where there is nothing."""
    if model.wrapper is None:
        return None
    counted = model.wrapper.frozen_parameters
    parts = "its other parts" if counted is None else f"{format_count(counted)} parameters of its other parts"
    return (
        f"{model.wrapper.family} is a model of more than text, of which the language model is trained: {parts} stay "
        "frozen and on disk"
    )


def left_wide(job: Job, model: ModelShape) -> str | None:
    """A sentence on stacked experts that QLoRA leaves wide, as bitsandbytes does; or None."""
    if job.method != "qlora":
        return None
    stacks = [(blocks, m) for blocks, m in model.every_matrix if m.stacked]
    wide = [(blocks, m) for blocks, m in stacks if not in_nf4(m, experts=job.quantises_experts)]
    elements = sum(blocks * m.count * m.rows * m.columns for blocks, m in wide)
    size, what = format_gib(BFLOAT16_BYTES * elements), "experts that a block keeps in one tensor"
    return f"qlora does not quantise {what}: {size} of all weights stay in bfloat16" if elements else None


def widened(job: Job, model: ModelShape) -> str | None:
    """A sentence on weights that are published in fewer bits than are trained; or None."""
    if model.published is None:
        return None
    size, saved = format_gib(int(model.published_bytes)), "the adapter's base stays the published one"
    if job.adapters is None:
        saved = f"final/ is in {model.storage_dtype if job.train.save_dtype == 'auto' else job.train.save_dtype}"
    return (
        f"the model is published in {model.published}, {size} of files, of which each rank widens its own part as it "
        f"loads; {saved}"
    )


def in_8_bits(job: Job, model: ModelShape, execution: Execution) -> str | None:
    """A sentence on how much of 8-bit AdamW's moments is in 8 bits; None of other optimizers."""
    if not execution.optimizer_rule.in_8_bits:
        return None
    inventory, types = take_inventory(job, model), TYPES[execution.precision]
    trained = [(count * one.count, one) for count, unit in inventory.units for one in unit.tensors if one.trained]

    def takes(optimizer: OptimizerName) -> int:
        return sum(n * t.state_bytes(optimizer, t.rows * t.columns, types, momentum=False) for n, t in trained)

    share = sum(count * t.rows * t.columns for count, t in trained if t.short) / inventory.trained_elements
    rest = "; norms, biases and rows that are no multiple of 256 stay in 32 bits" if share < 1 else ""
    sizes = f"{format_gib(takes(execution.optimizer))} of states in all, where adamw has {format_gib(takes('adamw'))}"
    return f"{execution.optimizer} keeps {100 * share:.3g} % of the moments in 8 bits, {sizes}{rest}"


_NAMES = {
    "weights": "weights are",
    "gradients": "gradients are",
    "optimizer": "optimizer states are",
    "activations": "activations are",
    "logits": "logits and their gradients are",
    "communication": "gathered weights and communication buffers are",
    "temporary": "temporaries are",
    "context": "the driver's context and communicators are",
}
_STATES = ("weights", "gradients", "optimizer")


def why_not(work: Work, memory: MemoryForecast, *, known: dict[str, bool]) -> str:
    """Why an execution does not fit, what takes most of the memory, and what would help. `known`:
    kept between executions of one search, of which all or none fit in shards."""
    worst = max(memory.ranks, key=lambda rank: rank.peak_bytes)
    part = max(worst.parts, key=lambda name: worst.parts[name])
    need, names = f"needs {format_gib(memory.peak_bytes)}, at most ", _NAMES[part]
    need += f"{_too_much(memory.peak_high_bytes, memory.capacity_bytes)} at {memory.peak_instant}"
    high, room = format_gib(memory.peak_high_bytes), format_gib(memory.capacity_bytes)
    said = f"{need}: {names} {format_gib(worst.parts[part])} of it; {_remedy(part, work, memory, known)}"
    return Sentence(said, short="" if high == room else f"up to {high}")


def _too_much(need: int, capacity: int) -> str:
    if format_gib(need) == format_gib(capacity):
        return f"{need / GIB:.5g} GiB of {capacity / GIB:.5g} GiB, {format_bytes(need - capacity)} too much,"
    return f"{format_gib(need)} of {format_gib(capacity)}"


def _remedy(part: str, work: Work, memory: MemoryForecast, known: dict[str, bool]) -> str:
    if part in _STATES:
        if not work.sharded:
            lora = ", or use lora" if work.job.method == "full" else ""
            if "shards" not in known:
                known["shards"] = _fits_in_shards(work, memory.capacity_bytes)
            return "shard them (fsdp)" if known["shards"] else f"shard them over more GPUs (fsdp){lora}"
        return "use more GPUs" if work.job.method != "full" else "use more GPUs, or method: lora"
    if part == "logits":
        chunked = replace(work, execution=replace(work.execution, loss="chunked"))
        return "train with loss: chunked" if chunked.head_tokens < work.head_tokens else _less_at_once(work)
    if part == "communication":
        kept = work.sharded and not work.execution.layout.reshard_after_forward
        return "free gathered weights after forward (fsdp)" if kept else "use a smaller model or precision"
    if work.execution.recompute != "full" and not work.execution.saves_on_host:
        return "recompute activations (gradient_checkpointing: full)"
    return _less_at_once(work)


def _less_at_once(work: Work) -> str:
    return "lower train.micro_batch_size" if work.execution.micro_batch_size > 1 else "shorten data.max_length"


def _fits_in_shards(work: Work, capacity: int) -> bool:
    """Whether a micro-batch fits the same GPUs where each holds its share of all states; larger
    ones too, for one that is alone in its step has no earlier gradients beside it."""
    job, model, layout = work.job, work.model, Layout(dp_shard=work.cluster.num_gpus)
    choice = Choice(strategy=layout.strategy, layout=layout, cluster=work.cluster)
    bases, _ = considered(job, model, choice)
    if layout.dp_shard == 1 or not bases:
        return False
    sizes = sizes_on(job, layout.data_world_size)
    tried = (sized(base, job, size) for size in sizes for base in bases)
    works = (work_of(job, model=model, cluster=work.cluster, execution=one, inventory=work.inventory) for one in tried)
    return any(forecast_memory(one).peak_high_bytes <= capacity for one in works)
