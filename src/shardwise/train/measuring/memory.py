"""Measured memory of a rank: what it holds, read from live tensors, and the peak of a step.

On a GPU the allocator counts. On the CPU the same allocations are read from the profiler's memory
events of the first two steps, the second of which has optimizer states: the peak above the step's
beginning, on top of what was held then. Phases are told apart by when the optimizer's step begins
and ends.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns, time_ns
from typing import Any

import torch
from torch import nn
from torch._C import _autograd
from torch._C._profiler import RecordScope
from torch.autograd.profiler import profile

from shardwise.parallel.optimizer.stepped import CONSTANTS
from shardwise.parallel.ownership import local_part
from shardwise.spec.run import FORWARD_BACKWARD, LOADING, OPTIMIZER

#: Steps of this process that are measured on the CPU.
_MEASURED_STEPS = 2
#: Of what the profiler can record, what is not there: an empty set is everything.
_NOTHING_RUNS = {RecordScope.LITE_INTERPRETER}


@dataclass(frozen=True, kw_only=True)
class Held:
    """Bytes a rank holds between steps."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.gradients + self.optimizer


def held(
    parameters: Iterable[nn.Parameter], optimizer: torch.optim.Optimizer, *, device: torch.device | None = None
) -> Held:
    """Counts storages on a device, each once and with shards' padding: of parameters, gradients and
    optimizer states, with the parameters' copy that the optimizer steps, if any."""
    parameters = list(parameters)
    named = (item for state in optimizer.state.values() for item in state.items())
    states = [v for key, v in named if isinstance(v, torch.Tensor) and not key.startswith(CONSTANTS)]
    weights = _storages(parameters, device)
    copies = _storages((p for group in optimizer.param_groups for p in group["params"]), device)
    return Held(
        weights=sum(weights.values()),
        gradients=sum(_storages((p.grad for p in parameters if p.grad is not None), device).values()),
        optimizer=sum((_storages(states, device) | {at: copies[at] for at in copies.keys() - weights.keys()}).values()),
    )


def _storages(tensors: Iterable[torch.Tensor], device: torch.device | None) -> dict[int, int]:
    """Storages of the local parts on a device -> their bytes: more than a shard's where padded."""
    storages: dict[int, int] = {}
    for tensor in tensors:
        local = local_part(tensor)
        if device is None or local.device.type == device.type:
            storage = local.untyped_storage()
            # Tied weights and views share a storage, which counts once; fake ones have no address.
            storages[storage.data_ptr() or id(storage)] = storage.nbytes()
    return storages


class Allocations(profile):
    """torch's profiler, of memory alone: the inner half of `torch.profiler.profile`, whose cycles
    torch 2.11 warns about where there are none.

    Functions are not recorded: a thread of gloo ends a collective's, maybe when the profiler has
    given up what it wrote down; the likely cause, not a proven one, of three ranks' native deaths
    in some thousands of worlds."""

    def _start_trace(self) -> None:
        self.entered = True
        self.profiling_start_time_ns = perf_counter_ns()
        enable: Callable[..., None] = _autograd._enable_profiler  # torch's stub lacks the third argument
        enable(self.config(create_trace_id=False), self.kineto_activities, _NOTHING_RUNS)


class MemoryMeter:
    """Peak memory of this rank. `rows_seen`: tokens of the longest rows that were measured, in
    first forwards and in later ones; `trained_seen`: positions trained there; `reserved_bytes`: by
    a GPU's allocator, 0 on a CPU. `buckets`: gradients that stay between steps."""

    def __init__(
        self,
        device: torch.device,
        *,
        parameters: list[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        buckets: Sequence[torch.Tensor] = (),
    ) -> None:
        self._device, self._on_gpu = device, device.type == "cuda"
        self._parameters, self._optimizer, self._buckets = parameters, optimizer, buckets
        self._watched, self._phase = 0, LOADING
        self._turns: list[tuple[int, str]] = []
        self._peaks: dict[str, int] = {}
        self.reserved_bytes = 0
        self.rows_seen, self.trained_seen = [0, 0], [0, 0]
        self.kind = "cuda_allocated" if self._on_gpu else "cpu_allocation_events"
        optimizer.register_step_pre_hook(lambda *_: self._turn(OPTIMIZER))
        optimizer.register_step_post_hook(lambda *_: self._turn(FORWARD_BACKWARD))

    def begin(self) -> None:
        """From here on peaks are those of training; what loading took is a phase of its own."""
        self._turn(FORWARD_BACKWARD)

    def _turn(self, phase: str) -> None:
        if self._on_gpu:
            self._note(self._phase, torch.cuda.max_memory_allocated(self._device))
            if self._phase != LOADING:
                self.reserved_bytes = max(self.reserved_bytes, torch.cuda.max_memory_reserved(self._device))
            torch.cuda.reset_peak_memory_stats(self._device)
        elif self._watched <= _MEASURED_STEPS:
            self._turns.append((time_ns(), phase))
        self._phase = phase

    def _note(self, phase: str, peak: int) -> None:
        self._peaks[phase] = max(peak, self._peaks.get(phase, 0))

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """What is inside is of a phase of its own, where this device counts it by itself."""
        self._turn(phase)
        yield
        self._turn(FORWARD_BACKWARD)

    @property
    def phase_peaks(self) -> dict[str, int]:
        """The most that was allocated at one instant of each phase that was measured."""
        if self._on_gpu:
            self._turn(self._phase)
        return dict(self._peaks)

    def device_figures(self) -> dict[str, int]:
        """What a GPU's allocator and driver say beside the peaks of training, that of loading among
        them; how often the allocator gave back what it kept to make room. Nothing on a CPU."""
        if not self._on_gpu:
            return {}
        free, total = torch.cuda.mem_get_info(self._device)
        return {
            "loading_peak_bytes": self._peaks.get(LOADING, 0),
            "peak_reserved_bytes": self.reserved_bytes,
            "device_used_bytes": total - free,
            "allocation_retries": torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0),
        }

    @property
    def peak_bytes(self) -> int:
        """The most that was allocated at one instant since training began."""
        return max((peak for phase, peak in self.phase_peaks.items() if phase != LOADING), default=0)

    @contextmanager
    def watch(self, lengths: Sequence[int], *, trained: Iterable[int] = ()) -> Iterator[None]:
        """Measures the step inside. `lengths`: tokens of a row in each forward, with padding;
        `trained`: trained positions of all rows, read where the step is measured."""
        self._watched += 1
        is_first = self._watched <= _MEASURED_STEPS
        if self._on_gpu or is_first:
            self.rows_seen = _most(self.rows_seen, lengths)
            self.trained_seen = _most(self.trained_seen, [*trained])
        if self._on_gpu or not is_first:
            yield
            return
        # The profiler counts changes: what is there already is added.
        before = held(self._parameters, self._optimizer, device=self._device).total
        before += sum(_storages(self._buckets, self._device).values())
        self._turns.clear()
        with Allocations(profile_memory=True) as profiler:
            yield
        for phase, peak in highest_by_phase(profiler, self._turns).items():
            self._note(phase, before + peak)


def _most(seen: Sequence[int], now: Sequence[int]) -> list[int]:
    """The largest number so far of a step's first forward, and of its later ones."""
    first, later = seen
    return [max(first, *now[:1], 0), max(later, *now[1:], 0)]


def highest_by_phase(profiler: Any, turns: Sequence[tuple[int, str]] = ()) -> dict[str, int]:
    """Largest sum of allocations minus frees since the profiler began, in order of time, by phase
    of a step, with what is alive at its beginning. `turns`: when each but the first began."""
    events = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [(event.start_ns(), event.nbytes(), "") for event in events] + [(at, 0, phase) for at, phase in turns]
    highest, now, phase = {FORWARD_BACKWARD: 0}, 0, FORWARD_BACKWARD
    for _, nbytes, turn in sorted(changes):
        now, phase = now + nbytes, turn or phase
        highest[phase] = max(now, highest.get(phase, 0))
    return highest
