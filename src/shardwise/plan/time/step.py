"""One optimizer step, by pipeline rank, for ranks on other axes are alike; and the whole run."""

from collections import Counter
from typing import NamedTuple

from shardwise.plan.costs.fsdp import num_units, sharded_messages
from shardwise.plan.costs.gradients import reduced_messages
from shardwise.plan.costs.piece import MessageTime, RankTime, device_of
from shardwise.plan.costs.pipeline import send_seconds
from shardwise.plan.rates import group_of
from shardwise.plan.time.passes import StageTime, endings_of, stage_of
from shardwise.plan.time.pieces import Pieces, pieces_of
from shardwise.plan.time.pipeline import rank_ends
from shardwise.plan.work import Work
from shardwise.spec.job.keys import TrainSpec
from shardwise.spec.job.preference import WITH_REFERENCE
from shardwise.spec.layout.axes import AXES
from shardwise.spec.model.flops import model_flops_per_token
from shardwise.spec.model.stages import stage_sizes
from shardwise.spec.plan.forecast import TimeForecast

#: Of a loss and of a norm.
FLOAT64_BYTES = 8
#: The host's time around a step: the batch, the loss read back, the records.
HOST_SECONDS_PER_STEP = 5e-3


class StepTime(NamedTuple):
    """A step's seconds, and what the ranks of a pipeline run in it: how often, and which piece."""

    seconds: float
    pieces: list[tuple[int, RankTime]]
    pp: int

    @property
    def computing(self) -> float:
        """Seconds, as a mean over ranks, in which a compute kernel runs."""
        return sum(times * piece.computing for times, piece in self.pieces) / self.pp

    @property
    def busy(self) -> float:
        """Likewise, in which any kernel runs."""
        return sum(times * piece.busy for times, piece in self.pieces) / self.pp


def stages_of(work: Work, pieces: Pieces, *, last_micro_batch: bool = False) -> tuple[StageTime, ...]:
    """Every stage of the pipeline, which is one where there is none; equal ones are one object."""
    spans = stage_sizes(work.model, num_stages=work.execution.layout.num_stages)
    last = len(spans) - 1

    def made(index: int) -> StageTime:
        sent = _messages(work, index, blocks=spans[index], reduces=last_micro_batch)
        return stage_of(work, pieces, sent, blocks=spans[index], last=index == last)

    if not last:
        return (made(0),)
    between = {blocks: made(spans.index(blocks, 1)) for blocks in set(spans[1:-1])}
    return (made(0), *map(between.__getitem__, spans[1:-1]), made(last))


def _messages(work: Work, stage: int, *, blocks: int, reduces: bool) -> MessageTime:
    outer = work.outer_of_stage(stage)
    if work.sharded:
        each = blocks / num_units(work, blocks)
        ends = (stage == 0, stage == work.execution.layout.num_stages - 1)
        sent = work.once(
            "messages", lambda: sharded_messages(work, outer=outer, blocks=each, last=reduces), each, ends, reduces
        )
        if not work.execution.postpones_reduction:
            return sent
        # Weights are gathered once a step, and stay: for the mean micro-batch.
        micros = work.execution.gradient_accumulation_steps
        return MessageTime(gather=sent.gather / micros, outer_gather=(sent.outer_gather + sent.head_gather) / micros)
    return reduced_messages(work, outer=outer) if reduces and work.replicated else MessageTime()


def step_of(work: Work, pieces: Pieces | None = None) -> StepTime:
    """The time of one optimizer step; `pieces` of its micro-batch, where they are known."""
    pieces = pieces or pieces_of(work)
    layout, micros = work.execution.layout, work.execution.gradient_accumulation_steps
    stages = stages_of(work, pieces)
    first, final = stages[0], stages[0].backward_pass
    back_of = {stage: stage.backward_pass for stage in stages}
    at_last = work.execution.adds_replicas_once or work.execution.reduce_once
    if work.replicated or (at_last and layout.pp == 1):
        final = stages_of(work, pieces, last_micro_batch=True)[0].backward_pass
        # The mean of all micro-batches' backwards, of which the last is another.
        both = zip(first.backward_pass, final, strict=True)
        back_of[first] = RankTime(*(((micros - 1) * a + b) / micros for a, b in both))
    ends = (micros * first.forward_pass.seconds + (micros - 1) * first.backward_pass.seconds + final.seconds,)
    if layout.pp > 1:
        seconds = tuple(stage.actions for stage in stages)
        ends = rank_ends(layout.schedule, stages=seconds, num_micro_batches=micros, send=send_seconds(work))
    # Forwards of all micro-batches without gradients: of routes, of the reference.
    only = _forwards_of_reference(work) + work.model.counts_routes
    if only:
        ahead_of_all = only * _forwards(work, stages)
        ends = tuple(ahead_of_all + end for end in ends)
    endings = endings_of(work)
    last = max(end + ending.seconds for end, ending in zip(ends, endings, strict=True))
    ran: list[tuple[int, RankTime]] = []
    for stage, count in Counter(stages).items():
        ran += [(count * micros * (1 + only), stage.forward_pass), (count * micros, back_of[stage])]
    ran += [(1, piece) for ending in endings for _, piece in ending.pieces]
    return StepTime(last + host_seconds(work), ran, layout.pp)


def _forwards(work: Work, stages: tuple[StageTime, ...]) -> float:
    layout, micros = work.execution.layout, work.execution.gradient_accumulation_steps
    return (micros + layout.pp - 1) * max(stage.forward_pass.seconds for stage in stages)


def host_seconds(work: Work) -> float:
    """The host's time around a step; CPU processes add up losses, and squares of gradients."""
    if work.cluster.gpu.kind == "cpu":
        return 2 * group_of(work.cluster, work.execution.layout, *AXES).all_reduce(FLOAT64_BYTES)
    return HOST_SECONDS_PER_STEP


def forecast_time(
    work: Work, *, num_rows: int | None = None, pieces: Pieces | None = None, filled: float = 1.0
) -> TimeForecast:
    """Step time, throughput and utilisations of an execution; the whole run's where the number of
    rows is known. `pieces` of its micro-batch, where they are known; `filled`: the share of its
    tokens that are no padding, which a run's throughput and MFU count alone. Utilisations are means
    over ranks: under naive model parallel on four GPUs, a quarter at most."""
    step = step_of(work, pieces)
    job, gpus = work.job, work.execution.layout.world_size
    tokens = filled * job.train.global_batch_size * job.sides * job.data.max_length
    flops = tokens * model_flops_per_token(work.model, length=job.data.max_length, lora=job.adapters)
    steps = num_steps(job.train, num_rows=num_rows)
    before = 0.0
    if steps is not None and _knows_reference(work):
        # Its log-probabilities are computed before the first step, of each row once.
        per_epoch = steps if num_rows is None else -(-num_rows // job.train.global_batch_size)
        before = min(steps, per_epoch) * _forwards(work, stages_of(work, pieces or pieces_of(work)))
    return TimeForecast(
        step_seconds=step.seconds,
        tokens_per_second=tokens / step.seconds,
        mfu=min(1.0, flops / (step.seconds * gpus * device_of(work).peak)),
        gpu_utilization=min(1.0, step.busy / step.seconds),
        compute_utilization=min(1.0, step.computing / step.seconds),
        total_seconds=None if steps is None else before + steps * step.seconds,
    )


def num_steps(train: TrainSpec, *, num_rows: int | None) -> int | None:
    """Optimizer steps of the run: `max_steps`, or the epochs over the rows; None if unknown."""
    if train.max_steps is None and num_rows is None:
        return None
    return train.num_steps(-(-(num_rows or 0) // train.global_batch_size))


#: Sums in another order may differ in their last digits.
ROUNDED = 1 - 1e-9


def least_seconds_of(work: Work, pieces: Pieces) -> float:
    """The least seconds of a pipeline's step: a rank waits for its first micro-batch from earlier
    stages, computes its own, the last gradient goes back through them; its optimizer steps."""
    layout, micros = work.execution.layout, work.execution.gradient_accumulation_steps
    stages = stages_of(work, pieces)
    seconds = {stage: stage.actions for stage in set(stages)}
    each = {stage: micros * (forward + backward) for stage, (forward, backward, _) in seconds.items()}
    ahead = min(one.forward for one in seconds.values())
    cut = layout.schedule == "zero_bubble"
    back = min(one.backward - cut * one.weights for one in seconds.values())
    least = 0.0
    for rank in range(layout.pp):
        own = stages[rank :: layout.pp]
        busy = sum(map(each.__getitem__, own))
        later = rank * back
        if cut:  # weights' gradients may be made while the last gradient goes back
            later = max(0.0, later - micros * sum(seconds[stage].weights for stage in own))
        least = max(least, rank * ahead + busy + later)
    return ROUNDED * (least + min(seconds for _, seconds in endings_of(work)))


def _forwards_of_reference(work: Work) -> int:
    """Forwards of all micro-batches that preferences add. `kto` takes answers behind the prompts of
    others, too, under what is trained and, if it is compared with itself, under the reference."""
    job = work.job
    mismatched = job.preference is not None and job.preference.loss_type == ["kto"]
    return (1 + mismatched) * job.compares_with_itself + mismatched


def _knows_reference(work: Work) -> bool:
    """Whether log-probabilities under the reference are computed before the first step."""
    job = work.job
    stated = job.preference is not None and job.preference.reference != "none"
    return stated and job.objective in WITH_REFERENCE and not job.compares_with_itself
