"""Figures of each optimizer step: metrics.jsonl, trackers, plain progress lines.

Every figure recomputes from others: tokens_per_second = tokens / step_seconds, and
mfu = model FLOPs per token * tokens_per_second / (ranks * dense peak FLOP/s). Tokens are real ones; padding is not
throughput.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from shardwise.data.deal import GlobalBatch
from shardwise.data.seen import Sight
from shardwise.parallel.mesh import World
from shardwise.spec.run import RunDirectory, amend_step, append_line, read_metrics
from shardwise.train.journal import Journal
from shardwise.train.memory import MemoryMeter
from shardwise.train.trackers import Trackers
from shardwise.units import format_bytes, format_seconds


@dataclass(frozen=True, kw_only=True)
class Pulse:
    """What all ranks learn of each other at a step's edge, in one small collective.

    Attributes:
        peak_memory_bytes: by rank.
        busy: share of the step in which the rank worked, by rank.
        stop: the signal some rank was asked to stop with, or 0.
        is_written: no rank is still writing a checkpoint.
        sights: what each rank saw, by rank.
    """

    peak_memory_bytes: list[int]
    busy: list[float]
    stop: int
    is_written: bool
    sights: list[Sight]


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Constants of the run that turn tokens and seconds into MFU.

    Attributes:
        flops_per_token: model FLOPs, forward and backward, of one token.
        peak_flops: dense peak of one device in the compute type, or None where it is not known.
    """

    flops_per_token: float
    peak_flops: float | None


class Metrics:
    """Measures steps and writes them down; only rank 0 writes."""

    def __init__(
        self,
        run: RunDirectory,
        *,
        world: World,
        journal: Journal,
        meter: MemoryMeter,
        trackers: Trackers,
        rates: Rates,
        total_steps: int,
        logging_steps: int,
    ) -> None:
        self._run = run
        self._world = world
        self._journal = journal
        self._meter = meter
        self._trackers = trackers
        self._rates = rates
        self._total_steps = total_steps
        self._logging_steps = logging_steps
        self._began = time.monotonic()
        self._seconds = 0.0
        self._busy = 0.0
        self._utilization_known = True
        self._edge = time.perf_counter()

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Times the step inside, from the last edge on: making the batch is part of the step."""
        cpu = time.process_time()
        with self._meter.watch():
            yield
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)
        self._seconds = time.perf_counter() - self._edge
        self._busy = self._utilization(time.process_time() - cpu)

    def edge(self) -> None:
        """A step and what came with it (evaluation, a checkpoint) are done; the next one begins."""
        self._edge = time.perf_counter()

    def _utilization(self, cpu_seconds: float) -> float:
        """What nvidia-smi means on a GPU; on the CPU, the share of its threads' time that was worked."""
        if self._world.device.type == "cuda":
            if not self._utilization_known:
                return float("nan")
            try:
                return torch.cuda.utilization(self._world.device) / 100
            except Exception as error:  # noqa: BLE001  # NVML's errors share no base with torch's; none may end a run
                self._journal.say(f"WARNING: GPU utilisation cannot be measured: {error}")
                self._utilization_known = False
                return float("nan")
        return min(1.0, cpu_seconds / (self._seconds * torch.get_num_threads()))

    def pulse(self, *, stop: int, is_written: bool, sight: Sight) -> Pulse:
        """Exchanges this rank's figures, whether it was asked to stop, and what it saw.

        Args:
            stop: the signal this rank was asked to stop with, or 0.
            is_written: this rank is not writing a checkpoint.
            sight: of the step that is done.
        """
        mine = torch.tensor([self._meter.peak_bytes, self._busy, stop, is_written, *sight], dtype=torch.float64)
        everyone = [torch.empty_like(mine) for _ in range(self._world.size)]
        dist.all_gather(everyone, mine, group=self._world.control)
        peaks, busy, stops, written, *sights = torch.stack(everyone).T.tolist()
        return Pulse(
            peak_memory_bytes=[int(peak) for peak in peaks],
            busy=busy,
            stop=int(max(stops)),
            is_written=all(written),
            sights=[Sight(*map(int, sight)) for sight in zip(*sights, strict=True)],
        )

    def record(
        self,
        batch: GlobalBatch,
        *,
        loss: float,
        norm: float,
        learning_rate: float,
        pulse: Pulse,
        eval_loss: float | None,
    ) -> None:
        """Writes one step down."""
        rate = batch.tokens / self._seconds
        figures: dict[str, Any] = {
            "step": batch.step,
            "epoch": round(batch.epoch, 6),
            "loss": loss,
            "grad_norm": norm,
            "learning_rate": learning_rate,
            "tokens": batch.tokens,
            "trained_tokens": batch.trained_tokens,
            "step_seconds": self._seconds,
            "tokens_per_second": rate,
            "mfu": self._mfu(rate),
            "gpu_utilization": _mean(pulse.busy),
            "gpu_utilization_by_rank": [None if math.isnan(busy) else busy for busy in pulse.busy],
            "peak_memory_bytes": pulse.peak_memory_bytes,
        }
        if eval_loss is not None:
            figures["eval_loss"] = _finite(eval_loss)
        if self._world.is_first:
            self._journal.note(lambda: append_line(self._run.metrics, figures))
        numbers = {k: float(v) for k, v in figures.items() if isinstance(v, int | float) and k != "step"}
        self._trackers.record(numbers, step=batch.step)
        if batch.step % self._logging_steps == 0 or batch.step in (1, self._total_steps):
            self._journal.say(self._line(figures))

    def lacks_evaluation(self, step: int) -> bool:
        """Whether a step was written down without an evaluation, alike on all ranks."""
        found = [False]
        if self._world.is_first:
            found = ["eval_loss" not in record for record in read_metrics(self._run) if record["step"] == step] or found
        dist.broadcast_object_list(found, src=0, group=self._world.control)
        return found[0]

    def complete(self, step: int, *, eval_loss: float) -> None:
        """Adds the loss of a later evaluation to a step that was written down."""
        figures: dict[str, Any] = {"eval_loss": _finite(eval_loss)}
        if self._world.is_first:
            self._journal.note(lambda: amend_step(self._run, step, figures))
        self._trackers.record({"eval_loss": eval_loss}, step=step)
        self._journal.say(f"step {step}/{self._total_steps}  eval loss {eval_loss:.4f}")

    def _mfu(self, tokens_per_second: float) -> float | None:
        if not self._rates.peak_flops:
            return None
        return self._rates.flops_per_token * tokens_per_second / (self._world.size * self._rates.peak_flops)

    def _line(self, figures: dict[str, Any]) -> str:
        left = (self._total_steps - figures["step"]) * figures["step_seconds"]
        evaluated = f"  eval loss {figures['eval_loss']:.4f}" if figures.get("eval_loss") is not None else ""
        return (
            f"step {figures['step']}/{self._total_steps}  loss {figures['loss']:.4f}{evaluated}  "
            f"grad norm {figures['grad_norm']:.3f}  lr {figures['learning_rate']:.2e}  "
            f"{figures['tokens_per_second']:.0f} tokens/s  peak {format_bytes(max(figures['peak_memory_bytes']))}  "
            f"ETA {format_seconds(left)}"
        )

    def close(self) -> None:
        """Ends the trackers."""
        self._trackers.close()


def _finite(loss: float) -> float | None:
    """What JSON can say."""
    return loss if math.isfinite(loss) else None


def _mean(shares: list[float]) -> float | None:
    """The mean over ranks, or None where a rank could not measure it."""
    mean = sum(shares) / len(shares)
    return None if math.isnan(mean) else mean
