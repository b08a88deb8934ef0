"""Figures of each optimizer step: metrics.jsonl, trackers, progress lines.

tokens_per_second = tokens / step_seconds, without padding;
mfu = model FLOPs per token * tokens_per_second / (ranks * peak FLOP/s).
"""

import math
import os
import time
import timeit
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from shardwise.catalog.gpus import find_gpu
from shardwise.data.digests import Sight
from shardwise.data.micro_batches import GlobalBatch
from shardwise.data.store import IGNORED
from shardwise.errors import HardwareError
from shardwise.parallel.mesh import World
from shardwise.spec.job.keys import Job
from shardwise.spec.run import PHASES, RunDirectory, append_line
from shardwise.train.measuring.memory import MemoryMeter
from shardwise.train.precision import type_name
from shardwise.train.watching.journal import Journal
from shardwise.units import format_bytes, format_seconds


class Tracker(NamedTuple):
    """An open tracker: what records figures of a step, and what closes it."""

    record: Callable[[dict[str, float], int], object]
    close: Callable[[], object]


def _tensorboard(_: Job, run: RunDirectory) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(run.root / "tensorboard"))

    def record(figures: dict[str, float], step: int) -> None:
        for name, value in figures.items():
            writer.add_scalar(f"train/{name}", value, step)

    return Tracker(record=record, close=writer.close)


def _wandb(job: Job, run: RunDirectory) -> Tracker:
    import wandb  # pyright: ignore[reportMissingImports]  # installed only by those who report there

    project = os.environ.get("WANDB_PROJECT", "shardwise")
    opened: Any = wandb.init(project=project, name=run.root.name, dir=str(run.root), config=job.to_json())

    def record(figures: dict[str, float], step: int) -> None:
        opened.log({f"train/{name}": value for name, value in figures.items()}, step=step)

    return Tracker(record=record, close=opened.finish)


def _mlflow(job: Job, run: RunDirectory) -> Tracker:
    import mlflow  # pyright: ignore[reportMissingImports]  # likewise

    mlflow.start_run(run_name=run.root.name)
    mlflow.log_params({"model": job.model, "method": job.method, **job.train.model_dump(mode="json")})
    return Tracker(record=lambda figures, step: mlflow.log_metrics(figures, step=step), close=mlflow.end_run)


_TRACKERS = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}


class Trackers:
    """Those of `names` that open; others, or later failures, are left out with a warning."""

    def __init__(self, names: Iterable[str], job: Job, run: RunDirectory, *, complain: Callable[[str], None]) -> None:
        self._trackers: dict[str, Tracker] = {}
        self._complain = complain
        for name in names:
            with self._left_out(name, "cannot be opened and is not"):
                self._trackers[name] = _TRACKERS[name](job, run)

    def record(self, figures: dict[str, float], *, step: int) -> None:
        """Passes figures on."""
        for name, tracker in list(self._trackers.items()):
            with self._left_out(name, "failed and is no longer"):
                tracker.record(figures, step)

    def close(self) -> None:
        """Closes all."""
        for name, tracker in list(self._trackers.items()):
            with self._left_out(name, "failed and is no longer"):
                tracker.close()

    @contextmanager
    def _left_out(self, name: str, how: str) -> Iterator[None]:
        """A tracker may fail in any way, some call exit; nothing it does may stop training."""
        try:
            yield
        except (Exception, SystemExit) as error:  # noqa: BLE001
            why = str(error) or type(error).__name__
            if isinstance(error, SystemExit):
                why = f"it called exit({error.code if error.code is not None else ''})"
            self._complain(f"{name} {how} reported to: {why}")
            self._trackers.pop(name, None)


#: NVML's figure is of the last second at the most, and costs the host a look-up.
_UTILIZATION_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Pulse:
    """What ranks exchange after each step, by rank: peaks of memory, the share of it in which one
    was `busy`, what it saw. `stop`: a signal or 0; `is_written`: no rank writes a checkpoint."""

    peak_memory_bytes: list[int]
    peak_reserved_bytes: list[int]
    phase_peak_bytes: dict[str, list[int]]
    busy: list[float]
    stop: int
    is_written: bool
    sights: list[Sight]


@dataclass(kw_only=True)
class Metrics:
    """Measures steps; rank 0 writes. `peak_flops`: dense, of one device, if known."""

    world: World
    journal: Journal
    meter: MemoryMeter
    trackers: Trackers
    flops_per_token: float
    peak_flops: float | None
    total_steps: int
    logging_steps: int
    _seconds: float = 0.0
    _cpu: float = 0.0
    _utilization: float = 0.0
    _utilization_asked: float = -math.inf
    _edge: float = field(default_factory=time.perf_counter)

    def working(self, batch: GlobalBatch) -> AbstractContextManager[None]:
        """Measures the work of a step, whose time runs from the last edge on."""
        self._cpu = time.process_time()
        micros = batch.micro_batches
        trained = (int((micro.labels != IGNORED).sum()) for micro in micros)
        return self.meter.watch([micro.input_ids.shape[1] for micro in micros], trained=trained)

    def stepped(self) -> None:
        """The step's figures have been read."""
        self._seconds = time.perf_counter() - self._edge

    def edge(self) -> None:
        """The step and its evaluation and checkpoint are done."""
        self._edge = time.perf_counter()

    def _busy(self) -> float:
        """What nvidia-smi means on a GPU; on the CPU, the share of its threads' time worked."""
        now = time.perf_counter()
        if self.world.device.type != "cuda":
            worked = time.process_time() - self._cpu
            return min(1.0, worked / ((now - self._edge) * torch.get_num_threads()))
        if now - self._utilization_asked >= _UTILIZATION_SECONDS:
            self._utilization_asked = now
            try:
                self._utilization = torch.cuda.utilization(self.world.device) / 100
            except Exception as error:  # noqa: BLE001  # NVML's errors share no base with torch's; none may end a run
                self.journal.say(f"WARNING: GPU utilisation cannot be measured: {error}")
                self._utilization, self._utilization_asked = math.nan, math.inf
        return self._utilization

    def pulse(self, *, stop: int, is_written: bool, sight: Sight) -> Pulse:
        """Exchanges this rank's figures, the signal that it was asked to stop with (or 0), whether
        it is not writing a checkpoint, and what it saw in the step that is done."""
        busy, phases = self._busy(), self.meter.phase_peaks
        memory = [self.meter.peak_bytes, self.meter.reserved_bytes, *(phases.get(phase, 0) for phase in PHASES)]
        mine = torch.tensor([busy, stop, is_written, *sight, *memory], dtype=torch.float64)
        everyone = [torch.empty_like(mine) for _ in range(self.world.size)]
        dist.all_gather(everyone, mine, group=self.world.control)
        shares, stops, written, *rest = torch.stack(everyone).T.tolist()
        sights, rest = rest[: len(sight)], [[int(figure) for figure in figures] for figures in rest[len(sight) :]]
        peaks, reserved, *by_phase = rest
        return Pulse(
            peak_memory_bytes=peaks,
            peak_reserved_bytes=reserved,
            phase_peak_bytes={phase: each for phase, each in zip(PHASES, by_phase, strict=True) if any(each)},
            busy=shares,
            stop=int(max(stops)),
            is_written=all(written),
            sights=[Sight(*map(int, sight)) for sight in zip(*sights, strict=True)],
        )

    def record(
        self,
        batch: GlobalBatch,
        *,
        loss: float,
        norm: float | None,
        learning_rate: float,
        pulse: Pulse,
        eval_loss: float | None,
        loss_scale: float | None,
        figures: Mapping[str, float] | None = None,
    ) -> None:
        """Writes one step; `norm` is None where it was skipped, `figures` come beside."""
        beside = {name: value if math.isfinite(value) else None for name, value in (figures or {}).items()}
        rate, busy = batch.tokens / self._seconds, sum(pulse.busy) / len(pulse.busy)
        peak = self.world.size * (self.peak_flops or 0)
        written: dict[str, Any] = {
            "step": batch.step,
            "epoch": round(batch.epoch, 6),
            "loss": loss,
            "grad_norm": norm,
            "learning_rate": learning_rate,
            **beside,
            "tokens": batch.tokens,
            "trained_tokens": batch.trained_tokens,
            "step_seconds": self._seconds,
            "tokens_per_second": rate,
            "mfu": self.flops_per_token * rate / peak if peak else None,
            "gpu_utilization": None if math.isnan(busy) else busy,  # a rank could not measure it
            "gpu_utilization_by_rank": [None if math.isnan(busy) else busy for busy in pulse.busy],
            "peak_memory_bytes": pulse.peak_memory_bytes,
            "peak_reserved_bytes": pulse.peak_reserved_bytes if any(pulse.peak_reserved_bytes) else None,
            "phase_peak_bytes": pulse.phase_peak_bytes,
        }
        if loss_scale is not None:
            written |= {"loss_scale": loss_scale, "skipped_step": norm is None}
        if eval_loss is not None:
            written["eval_loss"] = eval_loss if math.isfinite(eval_loss) else None  # JSON has no infinity and no NaN
        if self.world.is_first:
            self.journal.note(lambda: append_line(self.journal.run.metrics, written))
        numbers = {k: float(v) for k, v in written.items() if isinstance(v, int | float) and k != "step"}
        self.trackers.record(numbers, step=batch.step)
        if batch.step % self.logging_steps == 0 or batch.step in (1, self.total_steps):
            self.journal.say(self._line(written))

    def _line(self, figures: dict[str, Any]) -> str:
        left = (self.total_steps - figures["step"]) * figures["step_seconds"]
        evaluated = f"  eval loss {figures['eval_loss']:.4f}" if figures.get("eval_loss") is not None else ""
        if figures["grad_norm"] is None:
            norm = f"skipped: gradients overflowed at loss scale {figures['loss_scale']:.10g}"
        else:
            norm = f"grad norm {figures['grad_norm']:.3f}"
        return (
            f"step {figures['step']}/{self.total_steps}  loss {figures['loss']:.4f}{evaluated}  {norm}  "
            f"lr {figures['learning_rate']:.2e}  {figures['tokens_per_second']:.0f} tokens/s  "
            f"peak {format_bytes(max(figures['peak_memory_bytes']))}  ETA {format_seconds(left)}"
        )


def peak_flops(device: torch.device, dtype: torch.dtype) -> tuple[float | None, str]:
    """Dense FLOP/s of a device in a dtype, for MFU, and the figure's source. A GPU's is the
    catalogue's, or None; a CPU's is the best of a few matrix products, measured in under 0.1 s."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        try:
            gpu = find_gpu(name).gpu
        except HardwareError:
            return None, f"{name} is not in the catalogue"
        return gpu.dense_flops.get(type_name(dtype)), f"catalogue entry {gpu.name}"
    factor = torch.ones(512, 512, dtype=dtype)
    product = partial(torch.mm, factor, factor)
    product()
    seconds = timeit.repeat(product, number=1, repeat=5)
    return 2 * 512**3 / min(seconds), "matrix product of this process, measured at the start"
