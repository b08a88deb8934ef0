"""Memory, time and cost of one question's executions, with two lower bounds; parts are cached."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property

from shardwise.plan.memory import Peaks, forecast_memory
from shardwise.plan.search.executions import sized
from shardwise.plan.search.question import Question
from shardwise.plan.time import ROUNDED, Pieces, endings_of, forecast_time, least_seconds_of, pieces_of, ran_by, step_of
from shardwise.plan.work import Work, workspace_bytes
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.execution import Execution
from shardwise.spec.model.stages import stage_sizes
from shardwise.spec.plan.forecast import Candidate, Cost, MemoryForecast, TimeForecast
from shardwise.spec.support.attention import attention_refusal
from shardwise.spec.support.trained import not_trained


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """An execution with all that is known of it."""

    work: Work
    memory: MemoryForecast
    time: TimeForecast


def ways_to_reduce(execution: Execution) -> tuple[Execution, ...]:
    """An execution, and the same that reduces gradients once a step, where that saves messages."""
    return (execution, replace(execution, reduce_once=True)) if execution.may_reduce_once else (execution,)


class Forecasts:
    """The forecasts of a question on all of its cluster."""

    def __init__(self, question: Question) -> None:
        self.question = question
        # Each is computed once for an execution.
        self.seconds: Callable[[Execution], float] = cache(self._seconds)
        self.of: Callable[[Execution], Forecast] = cache(self._of)
        self._least_ending: Callable[[Execution], float] = cache(self._least_of_endings)
        self._least_walked: Callable[[Execution], float] = cache(self._least_of_walk)
        cluster, network = question.cluster, question.cluster.network
        machines = (cluster.gpu.name, cluster.node.num_gpus, cluster.node.link.name, network and network.name)
        self._place = (question.mean_length, id(question.inventory), *machines)
        self._bounds = question.memo.bounds.setdefault(self._place, {})

    @cached_property
    def memory(self) -> Peaks:
        """Memory of the job on a kind of GPU, however many there are."""
        asked, gpu, peaks = self.question, self.question.cluster.gpu, self.question.memo.peaks
        # The inventory, which stands for all else of a job, is kept alive by the entry.
        key = (asked.length, id(asked.inventory), gpu.kind, gpu.context_bytes, workspace_bytes(gpu))
        if key not in peaks:
            peaks[key] = self._peaks(asked.longest, None)
        return peaks[key]

    @cached_property
    def _at_mean_length(self) -> Peaks:
        """Works that time is forecast of: memory's, if sequences are alike and on this cluster."""
        asked = self.question
        if asked.mean_length == asked.length and asked.document is None and self.memory.cluster is asked.cluster:
            return self.memory
        return self._peaks(asked.mean, asked.document)

    def _peaks(self, job: Job, document: float | None) -> Peaks:
        asked = self.question
        shared = asked.memo.works.setdefault((job.data.max_length, id(asked.inventory), asked.cluster.gpu.kind), {})
        return Peaks(
            job=job,
            model=asked.model,
            cluster=asked.cluster,
            inventory=asked.inventory,
            document=document,
            shared=shared,
        )

    def fits(self, execution: Execution) -> bool:
        """Whether an execution fits the GPUs."""
        return self.memory.fits(execution, self.question.cluster.gpu.usable_bytes)

    def _seconds(self, execution: Execution) -> float:
        return step_of(self._at_mean_length.work(execution), self._pieces(execution)).seconds

    def least_seconds(self, base: Execution, size: int) -> float:
        """A lower bound of a step's seconds: the last pipeline rank waits for its first, computes
        its own, the last gradient goes back; collectives outside blocks are 0."""
        key = (*self._alike(base), size)
        if key not in self._bounds:
            self._bounds[key] = self._least_seconds(base, size)
        return self._bounds[key]

    def least_of_sizes(self, base: Execution, sizes: tuple[int, ...]) -> float:
        """A lower bound for some micro-batches: rows take least in the largest, but for slices."""
        key = (*self._alike(base), sizes)
        if key not in self._bounds:
            some = sizes if base.layout.tp > 1 or base.layout.pp > 1 else sizes[-1:]
            self._bounds[key] = min(self.least_seconds(base, size) for size in some)
        return self._bounds[key]

    def _alike(self, base: Execution) -> tuple[object, ...]:
        """What a lower bound depends on: no offload; of data sharding only `gathers_weights`."""
        layout = base.layout
        spread = (layout.ranks_per_row, layout.tp, layout.pp, layout.schedule, layout.data_world_size)
        return (*spread, base.gradient_checkpointing, base.gathers_weights, base.compile)

    def _least_seconds(self, base: Execution, size: int) -> float:
        layout = base.layout
        micros = -(-self.question.job.train.global_batch_size // (size * layout.data_world_size))
        pieces = self._pieces(sized(base, self.question.job, size))
        stages = stage_sizes(self.question.model, num_stages=layout.num_stages)
        forward, backward, loss = pieces.forward.seconds, pieces.backward.seconds, pieces.loss.seconds
        if layout.pp == 1 or layout.schedule == "sequential":
            return ROUNDED * micros * (sum(stages) * (forward + backward) + loss)
        before, own = sum(stages[: layout.pp - 1]), sum(stages[layout.pp - 1 :: layout.pp])
        last = own * (forward + backward) + loss
        # A backward cut in two leaves work for the time that the last gradient takes to go back.
        back = 0.0 if layout.schedule == "zero_bubble" else before * backward
        return ROUNDED * max(before * forward + micros * last + back, micros * max(stages) * (forward + backward))

    def least_seconds_of(self, base: Execution, size: int) -> float:
        """`least_seconds`, and what follows the last backward."""
        return self.least_seconds(base, size) + self._least_ending(base)

    def least_of_pipeline(self, base: Execution, size: int) -> float:
        """A closer bound of a pipeline's step, which takes longer to compute; 0 if none."""
        if base.layout.pp == 1 or base.layout.schedule == "sequential":
            return 0.0
        return min(map(self._least_walked, ways_to_reduce(sized(base, self.question.job, size))))

    def _least_of_walk(self, execution: Execution) -> float:
        if execution.layout.schedule == "gpipe":  # the bound is that of 1f1b
            return self._least_walked(replace(execution, layout=replace(execution.layout, schedule="1f1b")))
        return least_seconds_of(self._at_mean_length.work(execution), self._pieces(execution))

    def seconds_on_host(self, base: Execution) -> float:
        """Seconds of the optimizer step in the host's memory; 0 where the GPU takes it."""
        return 0.0 if base.offload == "none" else self._least_ending(base)

    def _least_of_endings(self, base: Execution) -> float:
        """Seconds that follow the last backward, of the pipeline rank with fewest."""
        return min(seconds for _, seconds in endings_of(self._at_mean_length.work(base)))

    def _pieces(self, execution: Execution) -> Pieces:
        layout = execution.layout
        sizes = (execution.micro_batch_size, execution.gradient_accumulation_steps > 1)
        choices = (execution.gathers_weights, execution.loss, execution.mlp, execution.compile)
        key = (*self._place, layout.ranks_per_row, layout.tp, *sizes, *choices)
        memo, recompute = self.question.memo, execution.gradient_checkpointing
        if (key, recompute) not in memo.pieces:
            work = self._at_mean_length.work(execution)
            if key not in memo.ran:
                memo.ran[key] = ran_by(work)
            memo.pieces[key, recompute] = pieces_of(work, memo.ran[key])
        return memo.pieces[key, recompute]

    def _of(self, execution: Execution) -> Forecast:
        work, asked = self.memory.work(execution), self.question
        work = work if work.cluster is asked.cluster else replace(work, cluster=asked.cluster)
        mean, pieces = self._at_mean_length.work(execution), self._pieces(execution)
        time = forecast_time(mean, num_rows=asked.num_rows, pieces=pieces, filled=asked.filled)
        return Forecast(work=work, memory=forecast_memory(work, self.memory.known.get(execution)), time=time)

    def candidate(self, execution: Execution) -> Candidate:
        """What is known of an execution, as plan.json has it."""
        forecast, asked = self.of(execution), self.question
        time, gpu = forecast.time, asked.cluster.gpu
        at_least = gpu.typical_usd_per_hour is None and gpu.usd_per_hour is not None
        price = gpu.usd_per_hour[0] if gpu.usd_per_hour and at_least else gpu.typical_usd_per_hour
        hourly = None if price is None else price * execution.layout.world_size
        kernel = attention_refusal(execution.attn_implementation, gpu, precision=execution.precision)
        usd = None if hourly is None or time.total_seconds is None else hourly * time.total_seconds / 3600
        return Candidate(
            execution=execution,
            fits=True,
            memory=forecast.memory,
            time=time,
            cost=Cost(usd=usd, usd_per_hour=hourly, at_least=at_least),
            not_trained=(*not_trained(asked.job, execution, model=asked.model), *([kernel] if kernel else [])),
        )


#: How much memory a machine has is not known. Servers are sold with about three times what their
#: GPUs have (NVIDIA DGX A100 and DGX H100: 2 TB beside 640 GB, by their data sheets).
HOST_OVER_GPU_MEMORY = 3.0


def bytes_beyond_host(cluster: Cluster, execution: Execution, *, of_rank: int) -> int | None:
    """Bytes that offload puts on one machine, `of_rank` for each rank; None where it has room."""
    node = cluster.node
    held = of_rank * min(node.num_gpus, execution.layout.world_size)
    return held if held > HOST_OVER_GPU_MEMORY * node.num_gpus * node.gpu.usable_bytes else None
