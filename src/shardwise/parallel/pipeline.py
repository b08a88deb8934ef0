"""Executes a pipeline schedule (spec/layout/schedule.py) on the stages of this rank.

A receive is posted when its action comes: posted earlier, it could wait for the action at hand, and
block the device. Of `torch.distributed.pipelining` the split of a backward in two is used.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from shardwise.parallel.fsdp import keep_gradients, reduce_at_last, reduction_postponed
from shardwise.parallel.gradients import Finish
from shardwise.parallel.mesh import Pipes, World
from shardwise.parallel.single_stage import Inputs
from shardwise.spec.layout.execution import Execution
from shardwise.spec.layout.schedule import Action, actions, forwards


class PipelineMessage(NamedTuple):
    """A tensor between stages: with `forward` activations of `stage`, else its input's gradient."""

    forward: bool
    stage: int
    micro: int


@dataclass(kw_only=True)
class Saved:
    """What a stage keeps of one micro-batch between forward and backward."""

    received: torch.Tensor | None
    output: torch.Tensor
    weight_groups: list[dict[str, Any]] | None = None
    output_gradient: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The stages of this rank: root module by index. `widths`: elements of a token in messages, by
    their way and stage; `dtype`: of them; the rest as of `WholeModel`."""

    stages: dict[int, nn.Module]
    pipes: Pipes
    world: World
    widths: dict[tuple[bool, int], int]
    dtype: torch.dtype
    gradient_divisor: int
    execution: Execution
    finish: Finish

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The root modules of this rank's stages."""
        return tuple(self.stages.values())

    def gradients(self, micros: Sequence[Inputs], *, scale: float) -> torch.Tensor:
        """As `WholeModel.gradients`; all micro-batches are one run of the schedule."""
        # DDP and FSDP divide gradients by the number of ranks: the loss is enlarged by as much.
        run = _Run(self, micros, scale=scale * self.gradient_divisor)
        cut = self.world.layout.schedule == "zero_bubble"
        # FSDP would reduce behind the backward of inputs, before gradients of weights are made.
        with reduction_postponed(self.modules) if cut else nullcontext():
            run.execute(actions)
        self.finish()
        losses = [torch.zeros((), device=self.world.device), *run.results.values()]
        # In float64, so that the sum hardly depends on how micro-batches are spread.
        return self.world.counted(torch.stack(losses).double().sum())

    @torch.no_grad()
    def outputs(self, micros: Sequence[Inputs]) -> list[torch.Tensor | None]:
        """As `WholeModel.outputs`, of the last stage; None on other ranks."""
        run = _Run(self, micros)
        run.execute(forwards)
        return [run.results.get(micro) for micro in range(len(micros))]


class _Run:
    """A run of the schedule; without `scale` forwards only. `results`: the last stage's losses."""

    def __init__(self, pipeline: Pipeline, micros: Sequence[Inputs], *, scale: float | None = None) -> None:
        self.pipeline, self.micros, self.scale = pipeline, micros, scale
        self.results: dict[int, torch.Tensor] = {}
        self._last_stage = pipeline.world.layout.num_stages - 1
        self._saved: dict[tuple[int, int], Saved] = {}
        self._arriving: dict[PipelineMessage, tuple[torch.Tensor, Any]] = {}
        self._leaving: list[tuple[torch.Tensor, Any]] = []
        self._backwards = Counter[int]()

    def execute(self, order_of: Callable[..., tuple[Action, ...]]) -> None:
        """Executes this rank's actions in order, then waits for pending sends."""
        layout, rank = self.pipeline.world.layout, self.pipeline.world.rank
        place: dict[str, int] = {"num_ranks": layout.pp, "rank": layout.coordinates(rank).pp}
        do = {
            "forward": self._forward,
            "backward": self._backward,
            "backward_input": self._backward_input,
            "backward_weight": self._backward_weight,
        }
        for action in order_of(layout.schedule, num_micro_batches=len(self.micros), **place):
            if action.kind == "forward" and action.stage > 0:
                self._receive(PipelineMessage(forward=True, stage=action.stage - 1, micro=action.micro))
            elif action.kind in ("backward", "backward_input") and action.stage < self._last_stage:
                self._receive(PipelineMessage(forward=False, stage=action.stage + 1, micro=action.micro))
            do[action.kind](action)
        for _, work in self._leaving:
            work.wait()

    def _forward(self, action: Action) -> None:
        given = vars(self.micros[action.micro])
        received = self._take(PipelineMessage(forward=True, stage=action.stage - 1, micro=action.micro))
        if received is not None:
            given = {**given, "input_ids": None, "hidden": received.requires_grad_(self.scale is not None)}
        output: torch.Tensor = self.pipeline.stages[action.stage](**given)
        is_last = action.stage == self._last_stage
        if is_last:
            self.results[action.micro] = output.detach()
        else:
            self._send(PipelineMessage(forward=True, stage=action.stage, micro=action.micro), output.detach())
        if self.scale is not None:
            output = output * self.scale if is_last else output
            self._saved[action.stage, action.micro] = Saved(received=received, output=output)

    def _backward(self, action: Action) -> None:
        saved, gradient = self._saved.pop((action.stage, action.micro)), self._gradient_of_output(action)
        self._backwards[action.stage] += 1
        last = self._backwards[action.stage] == len(self.micros)
        reduce_at_last(self.pipeline.stages[action.stage], self.pipeline.execution, last=last)
        if saved.output.requires_grad:
            torch.autograd.backward(saved.output, gradient)
        self._send_gradient(action, saved)

    def _backward_input(self, action: Action) -> None:
        """The gradient of the input, for which the previous stage waits; the first has none."""
        saved, gradient = self._saved[action.stage, action.micro], self._gradient_of_output(action)
        if saved.received is None:
            saved.output_gradient = gradient
            return
        from torch.distributed.pipelining._backward import stage_backward_input  # zero-bubble orders alone need it

        gradients, parameters = None if gradient is None else [gradient], iter(self._parameters(action.stage))
        _, saved.weight_groups = stage_backward_input([saved.output], gradients, [saved.received], parameters)
        self._send_gradient(action, saved)

    def _backward_weight(self, action: Action) -> None:
        saved = self._saved.pop((action.stage, action.micro))
        if saved.weight_groups is not None:
            from torch.distributed.pipelining._backward import stage_backward_weight

            stage_backward_weight(iter(self._parameters(action.stage)), saved.weight_groups)
        elif saved.output.requires_grad:
            torch.autograd.backward(saved.output, saved.output_gradient)
        keep_gradients(self.pipeline.stages[action.stage])

    def _parameters(self, stage: int) -> list[nn.Parameter]:
        return [p for p in self.pipeline.stages[stage].parameters() if p.requires_grad]

    def _gradient_of_output(self, action: Action) -> torch.Tensor | None:
        return self._take(PipelineMessage(forward=False, stage=action.stage + 1, micro=action.micro))

    def _send_gradient(self, action: Action, saved: Saved) -> None:
        if saved.received is not None and saved.received.grad is not None:
            self._send(PipelineMessage(forward=False, stage=action.stage, micro=action.micro), saved.received.grad)

    def _receive(self, message: PipelineMessage) -> None:
        # Both stages have the rows' ids, and so the shape: it is not sent.
        shape = (*self.micros[message.micro].input_ids.shape, self.pipeline.widths[message[:2]])
        buffer = torch.empty(shape, dtype=self.pipeline.dtype, device=self.pipeline.world.device)
        source = self.pipeline.pipes.rank_of(message.stage)
        self._arriving[message] = (buffer, dist.irecv(buffer, source, **self._way(message)))

    def _take(self, message: PipelineMessage) -> torch.Tensor | None:
        """The received tensor; None where no other stage sends one."""
        if message not in self._arriving:
            return None
        buffer, work = self._arriving.pop(message)
        work.wait()
        return buffer

    def _send(self, message: PipelineMessage, tensor: torch.Tensor) -> None:
        to = self.pipeline.pipes.rank_of(message.stage + (1 if message.forward else -1))
        tensor = tensor.to(self.pipeline.dtype).contiguous()
        self._leaving.append((tensor, dist.isend(tensor, to, **self._way(message))))
        # A tensor on its way must stay: its memory would be given to another.
        self._leaving = [(held, work) for held, work in self._leaving if not work.is_completed()]

    def _way(self, message: PipelineMessage) -> dict[str, Any]:
        """The group of a message, and a number of its own among all of a step."""
        # gloo tells messages apart by their tags; NCCL, which has none, by their order in a group.
        tag = 2 * (message.micro * (self._last_stage + 1) + message.stage) + message.forward
        return {"group": self.pipeline.pipes.group(forward=message.forward, stage=message.stage), "tag": tag}
