"""What would help, and what if: a job with one change, planned, beside the plan of it as it is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Literal

from shardwise.catalog.offers import machine_sizes
from shardwise.errors import UnsupportedError
from shardwise.plan.search import Memo, Question, ask, best_alone, changed, of_job, on_attention, on_hardware
from shardwise.spec.cluster import Cluster
from shardwise.spec.data_facts import Lengths
from shardwise.spec.job.keys import Job, LoraSpec
from shardwise.spec.plan.beside import PlannedChange
from shardwise.spec.plan.forecast import Candidate, cost_text
from shardwise.units import format_count, format_gib, format_seconds

_Saves = Literal["step", "GPU hours", "token"]

#: What a change must save to be advised: of a step, of its GPU hours, or of a token.
_WORTH: dict[_Saves, float] = {"step": 0.1, "GPU hours": 0.15, "token": 0.15}
#: How many times the time may be taken where weights need not lie in the host's memory.
_RATHER = 1.25
#: What advice looks at beside the chosen strategy.
_USUAL = ("ddp", "fsdp")
#: On more GPUs than this no other number of them is looked at.
_MOST_COUNTED = 64
#: Rows shorter than this are not advised to be shorter.
_LONG = 2048
#: A larger rank of adapters that is asked about.
_LARGE_RANK = 64

_LONGER = "the run takes longer"
_DRAWBACKS = {
    "adamw_8bit": "it rounds the moments of the weights to 8 bits",
    "bf16": "without float32 masters small updates are rounded away, and that cannot be undone",
    "qlora": "it rounds the frozen weights to 4 bits",
}


@dataclass(frozen=True, kw_only=True)
class _Tried:
    """A change and its question, None for a `reason`; `saves`: what it is advised for."""

    name: str
    saves: _Saves = "step"
    sets: dict[str, Any] = field(default_factory=dict[str, Any])
    question: Question | None
    drawback: str | None = None
    reason: str | None = None


def helpful(question: Question, first: Candidate) -> tuple[PlannedChange, ...]:
    """Changes that save time, money or the host's memory, each tried. `first`: what is chosen."""
    if question.cluster.gpu.kind == "cpu":
        return ()
    found, least = list[PlannedChange](), first.time.step_seconds
    for tried in _worth_trying(_among_few(question, first)):
        best = _planned(tried, limit=_most_seconds(tried, first, least=least))
        if best is None or not _is_better(tried, best, first, least=least):
            continue
        is_slower = best.time.step_seconds > 1.01 * first.time.step_seconds
        drawback = tried.drawback if is_slower or tried.drawback != _LONGER else None
        found.append(_change(replace(tried, drawback=drawback), best, first))
        if tried.saves == "step":  # another way to the same must be as much better again
            least = best.time.step_seconds
    return tuple(found)


def on_less(question: Question, first: Candidate, among: Sequence[Cluster]) -> tuple[PlannedChange, ...]:
    """All in bfloat16 with 8-bit moments on the first of `among` with half the memory."""
    job = question.job
    if job.method != "full" or not (_takes_bf16(job) and _takes_8_bits(job)):
        return ()
    tried = _with(question, optimizer="adamw_8bit", precision="bf16")
    most = first.execution.layout.world_size * first.memory.capacity_bytes / 2
    for cluster in among:
        if cluster.num_gpus * cluster.gpu.usable_bytes <= most and "bfloat16" in cluster.gpu.dense_flops:
            asked = tried.question and on_hardware(tried.question, cluster)
            one = replace(tried, name=f"{tried.name} on {cluster.name}", question=asked)
            one = replace(one, sets={**one.sets, "hardware": cluster.name})
            best = _planned(one)
            if best is not None and best.execution.offload == "none":
                return (_change(one, best, first),)
    return ()


def what_if(question: Question, first: Candidate) -> tuple[PlannedChange, ...]:
    """The job as it is, and with each of some changes that people ask about."""
    as_it_is = _change(_Tried(name="as asked", question=question), first, first)
    return (as_it_is, *(_change(one, _planned(one), first) for one in _asked_about(question)))


def _among_few(question: Question, first: Candidate) -> Question:
    """The question among few layouts, so that what is tried is soon known."""
    if question.job.layout != "auto":
        return question
    among = list(dict.fromkeys((first.execution.layout.strategy, *_USUAL)))
    cluster = question.cluster
    some = [choice for choice in question.layouts if cluster.num_gpus == 1 or choice.strategy in among]
    memo = Memo(layouts={(cluster.name, question.job.data.max_length): some})
    return replace(question, job=question.job.model_copy(update={"layout": among}), memo=memo)


def _takes_8_bits(job: Job) -> bool:
    return job.train.optimizer in ("auto", "adamw")


def _takes_bf16(job: Job) -> bool:
    return job.train.precision in ("auto", "mixed")


def _worth_trying(question: Question) -> Iterator[_Tried]:
    job = question.job
    in_8_bits = job.method == "full" and _takes_8_bits(job)
    if in_8_bits:
        yield _with(question, optimizer="adamw_8bit")
    if job.method == "full" and _takes_bf16(job) and "bfloat16" in question.cluster.gpu.dense_flops:
        yield _with(question, precision="bf16")
        if in_8_bits:
            yield _with(question, optimizer="adamw_8bit", precision="bf16")
    if job.method == "lora":
        qlora = job.model_copy(update={"method": "qlora"})
        yield _again(question, "method: qlora", qlora, {"method": "qlora"}, drawback=_DRAWBACKS["qlora"])
    if other := on_attention(question):
        names, adapted = other
        name, drawback = f"lora.target_modules: [{', '.join(names)}]", "experts stay as they are"
        yield _again(question, name, adapted, {"lora.target_modules": names}, drawback=drawback)
    if job.goal == "fastest" and question.cluster.num_gpus <= _MOST_COUNTED and job.stated_layout is None:
        yield from _other_counts(question)
    if question.mean_length >= job.data.max_length >= _LONG:
        half, drawback = job.data.max_length // 2, "longer rows are cut, dropped or refused (data.over_long)"
        yield replace(_of_length(question, half, drawback), name=f"data.max_length: {half}", saves="token")


def _other_counts(question: Question) -> Iterator[_Tried]:
    cluster = question.cluster
    if cluster.num_gpus % 2 == 0:
        yield _on(question, cluster.part(cluster.num_gpus // 2), "half the GPUs", _LONGER)
    if cluster.num_nodes == 1 and 2 * cluster.num_gpus in machine_sizes(cluster.gpu.name):
        twice = replace(cluster, node=replace(cluster.node, num_gpus=2 * cluster.num_gpus))
        yield _on(question, twice, "twice as many GPUs", "an hour costs twice as much")


def _on(question: Question, cluster: Cluster, name: str, drawback: str) -> _Tried:
    sets, asked = {"hardware": cluster.name}, on_hardware(question, cluster)
    name = f"{name} ({cluster.name})"
    return _Tried(name=name, saves="GPU hours", sets=sets, question=asked, drawback=drawback)


def _with(question: Question, drawback: str | None = None, **keys: str | int) -> _Tried:
    memo = Memo(layouts=question.memo.layouts)
    return _Tried(
        name=", ".join(f"{key}: {value}" for key, value in keys.items()),
        sets={f"train.{key}": value for key, value in keys.items()},
        question=replace(question, job=changed(question.job, "train", **keys), memo=memo),
        drawback=drawback or "; ".join(_DRAWBACKS[str(value)] for value in keys.values()),
    )


def _again(question: Question, name: str, job: Job, sets: dict[str, Any], *, drawback: str | None = None) -> _Tried:
    try:
        return _Tried(name=name, sets=sets, question=of_job(question, job), drawback=drawback)
    except UnsupportedError as error:
        return _Tried(name=name, sets=sets, question=None, reason=str(error))


def _asked_about(question: Question) -> Iterator[_Tried]:
    job, cluster = question.job, question.cluster
    fewer_steps = "half as many steps, for which the learning rate is to be found anew"
    doubled = _with(question, fewer_steps, global_batch_size=2 * job.train.global_batch_size)
    yield replace(doubled, name="batch doubled")
    if job.adapters is not None and job.adapters.r != _LARGE_RANK:
        lora: LoraSpec = job.adapters.model_copy(update={"r": _LARGE_RANK})
        yield _again(question, f"r {_LARGE_RANK}", job.model_copy(update={"lora": lora}), {"lora.r": _LARGE_RANK})
    yield _of_length(question, 2 * job.data.max_length, "all rows are counted as that long")
    if cluster.num_gpus > 1 and cluster.num_nodes == 1 and cluster.gpu.kind != "cpu":
        fewer = cluster.part(cluster.num_gpus - 1)
        yield _Tried(name="one GPU fewer", sets={"hardware": fewer.name}, question=on_hardware(question, fewer))
    if _takes_8_bits(job):
        yield replace(_with(question, optimizer="adamw_8bit"), name="8-bit Adam")
    if not job.data.packing and job.objective == "sft":
        yield _packed(question)


def _of_length(question: Question, length: int, drawback: str) -> _Tried:
    tried = _Tried(name=f"rows of {length:,} tokens", sets={"data.max_length": length}, question=None)
    most = question.model.max_position_embeddings
    if length > most:
        return replace(tried, reason=f"the model was made for {most:,} positions")
    job = changed(question.job, "data", max_length=length)
    try:
        asked = ask(job, model=question.model, cluster=question.cluster, num_rows=question.num_rows)
    except UnsupportedError as error:
        return replace(tried, reason=str(error))
    return replace(tried, question=asked, drawback=drawback)


def _packed(question: Question) -> _Tried:
    """Rows put together until `max_length` is full; not known while the lengths of rows are not."""
    length, mean = question.job.data.max_length, question.mean_length * question.filled
    sets = {"data.packing": True}
    if question.num_rows is None or mean >= length:
        why = "lengths of rows are not known: name data.path" if mean >= length else "data.num_rows is not known"
        return _Tried(name="packing", sets=sets, question=None, reason=why)
    rows = max(1, round(question.num_rows * mean / length))
    lengths = Lengths(longest=length, mean=length, document=mean)
    job = changed(question.job, "data", packing=True)
    asked = ask(job, model=question.model, cluster=question.cluster, num_rows=rows, lengths=lengths)
    drawback = f"{question.num_rows / rows:.1f} times as many tokens in a step, of fewer steps"
    return _Tried(name="packing", sets=sets, question=asked, drawback=drawback)


def _planned(tried: _Tried, *, limit: float = inf) -> Candidate | None:
    if tried.question is None:
        return None
    try:
        best = best_alone(tried.question, limit=limit)
    except UnsupportedError:
        return None
    return None if best is None or best.not_trained else best


def _most_seconds(tried: _Tried, first: Candidate, *, least: float) -> float:
    """Seconds of a step beyond which a change is surely not better (`_is_better`)."""
    if tried.question is None:
        return 0.0
    if tried.saves == "step":
        return least * (1 - _WORTH["step"] if first.execution.offload == "none" else _RATHER)
    most = (1 - _WORTH[tried.saves]) * _of(tried.saves, first)
    asked = tried.question
    tokens = asked.filled * asked.job.train.global_batch_size * asked.job.sides * asked.mean_length
    return most * (tokens if tried.saves == "token" else 1 / asked.cluster.num_gpus)


def _is_better(tried: _Tried, best: Candidate, first: Candidate, *, least: float) -> bool:
    """Whether a change saves enough, or the host's memory. `least`: seconds of what is advised."""
    on_host = first.execution.offload != "none" and best.execution.offload == "none"
    if tried.saves == "step":
        most = (1 - _WORTH["step"]) * least
        most_slow = _RATHER if first.execution.parameters_on_host else 1.0
        as_fast = on_host and best.time.step_seconds <= most_slow * least and least == first.time.step_seconds
        return best.time.step_seconds <= most or as_fast
    return _of(tried.saves, best) <= (1 - _WORTH[tried.saves]) * _of(tried.saves, first)


def _of(what: _Saves, one: Candidate) -> float:
    if what == "token":
        return 1 / one.time.tokens_per_second
    return one.time.step_seconds * one.execution.layout.world_size


def _change(tried: _Tried, best: Candidate | None, first: Candidate) -> PlannedChange:
    hardware = tried.question.cluster.name if tried.question else str(tried.sets.get("hardware", ""))
    known: dict[str, Any] = {"name": tried.name, "sets": tried.sets, "drawback": tried.drawback, "hardware": hardware}
    if best is None:
        reason = tried.reason or f"nothing fits on {hardware}"
        return PlannedChange(**known, fits=False, reason=reason, sentence=f"{tried.name}: {reason}")
    execution, time = best.execution, best.time
    return PlannedChange(
        **known,
        fits=True,
        strategy=execution.layout.strategy,
        written=execution.layout.written,
        micro_batch_size=execution.micro_batch_size,
        gradient_checkpointing=execution.gradient_checkpointing,
        offload=execution.offload,
        step_seconds=time.step_seconds,
        tokens_per_second=time.tokens_per_second,
        total_seconds=time.total_seconds,
        usd=best.cost.usd,
        usd_per_hour=best.cost.usd_per_hour,
        at_least=best.cost.at_least,
        peak_bytes=best.memory.peak_bytes,
        capacity_bytes=best.memory.capacity_bytes,
        sentence=_sentence(tried, best, first),
    )


def _sentence(tried: _Tried, best: Candidate, first: Candidate) -> str:
    """`optimizer: adamw_8bit would take 17 s a step and $369 in place of 22 s and $492; it ...`."""

    def figures(one: Candidate, unit: str) -> str:
        rate = f"{format_count(one.time.tokens_per_second)} tokens/s"
        if tried.saves == "token":  # of another number of tokens
            return rate
        costs = "" if one.cost.usd is None else f" and {cost_text(one.cost)}"
        return f"{format_seconds(one.time.step_seconds)}{unit} ({rate}){costs}"

    without = best.execution.offload == "none" != first.execution.offload
    host = ", and nothing lies in the host's memory" if without else ""
    memory = f"{format_gib(best.memory.peak_bytes)} of {format_gib(best.memory.capacity_bytes)}"
    drawback = f"; drawback: {tried.drawback}" if tried.drawback else ""
    verb = "would train" if tried.saves == "token" else "would take"
    return f"{tried.name} {verb} {figures(best, ' a step')} in place of {figures(first, '')}{host}; {memory}{drawback}"
