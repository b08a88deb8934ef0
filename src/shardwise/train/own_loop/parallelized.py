"""`parallelize`: distributes a model in memory over ranks; its step is equal under every layout."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from shardwise.data.micro_batches import GlobalBatch
from shardwise.errors import InputError, UnsupportedError
from shardwise.models.anatomy import drops_out
from shardwise.models.known_ahead import hold_rotations, rows_unpacked
from shardwise.models.load import fill_from_memory
from shardwise.models.routing import Balance
from shardwise.models.weights import Keys
from shardwise.parallel.context import Context
from shardwise.parallel.mesh import join_world
from shardwise.parallel.optimizer.stepped import Detour, LocalParts
from shardwise.parallel.optimizer.zero1 import Windows
from shardwise.spec.job.file import job_from_data
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Checkpointing, Execution, Precision
from shardwise.train.guards.checks import REPLICA_CHECK_STEPS, check_replicas
from shardwise.train.model import ModelPart, TrainedModel, cut_parts, spread_parts
from shardwise.train.optim import norm_of
from shardwise.train.own_loop.given import Given, untouched
from shardwise.train.own_loop.handed import Handed, plain
from shardwise.train.own_loop.shares import global_batch
from shardwise.train.precision import LossScale
from shardwise.train.saving.export import Result
from shardwise.train.saving.final import save_folder
from shardwise.train.step import GradientAccumulator

#: In which a thread that has its last lines to run gets a processor.
_LET_GO_SECONDS = 0.2


def parallelize(
    model: nn.Module,
    layout: str | Mapping[str, Any] | Layout,
    *,
    precision: Precision | None = None,
    gradient_checkpointing: Checkpointing = "none",
    micro_batch_size: int | None = None,
    seed: int = 0,
) -> Parallelized:
    """Spreads a model over the ranks that torchrun started; one process needs none.

    Args:
        model: a causal language model of transformers with its weights, or a PEFT model (LoRA)
            around one. It is empty afterwards: each rank keeps its part of the weights. Where ranks
            have different values, rank 0's are taken.
        layout: a strategy (`single`, `ddp`, `fsdp`, ...), or a product such as `{"dp_shard": 2,
            "tp": 2}`.
        precision: `mixed`, `bf16` or `fp32`; None for that of the weights as they are.
        micro_batch_size: rows of one forward of one rank; None for its share of the batch, under a
            pipeline for a quarter of that with two ranks, a sixth with three, and so on.
        seed: of dropout.

    Raises:
        InputError: the layout is none, or not one of as many processes as were started.
        UnsupportedError: the model, its adapters or the layout is not trained; says what is.
    """
    given = Given.of(model)
    execution = Execution(
        layout=_layout(layout),
        micro_batch_size=micro_batch_size or 1,
        gradient_accumulation_steps=1,
        precision=precision or given.precision,
        gradient_checkpointing=gradient_checkpointing,
        attn_implementation=given.base.config._attn_implementation,  # pyright: ignore
    )
    shape = given.shape
    given.refuse(execution)
    world = join_world(execution.layout)
    atexit.register(_leave_groups)
    given.agree(world)
    Context.registered(world)
    balance = Balance.of(given.base.config, device=world.device) if shape.has_experts else None
    of_model: dict[str, Any] = {"world": world, "shape": shape, "drops": True}
    parts = cut_parts(partial(given.without_weights, execution), execution, balance=balance, **of_model)
    first = parts[0].model

    def fill(part: ModelPart) -> None:
        fill_from_memory(part.model, value=given.values.__getitem__, device=world.device)

    in_files = {"keys": Keys.of_loaded(first), "saved_dtype": given.saved_dtype, "kept": parts[0].buffers}
    result = Result(model=first, adapters=parts[0].adapters, source=None, **in_files)
    trained = spread_parts(parts, execution, fill=fill, result=result, content={}, **of_model)
    hold_rotations(trained.spread.modules)
    taken = [*model.parameters()]
    given.let_go()
    # Both before and after: an optimizer may have been made of either.
    taken += model.parameters()
    return Parallelized(trained, micro_batch_size=micro_batch_size, seed=seed, given=taken).train(model.training)


#: What models have and a parallelized one has not: what there is instead.
LACKING = {
    "forward": "step(batch) is forward and backward, evaluate(batch) the loss without gradients",
    "state_dict": "ranks hold parts of weights; save_pretrained(folder), called by every rank, writes the whole",
    "load_state_dict": "load the model before parallelize",
    "generate": "ranks hold parts of weights; save_pretrained(folder), and load that with from_pretrained",
    "copy": "average weights over steps by copies of model.parameters(), and copy_ them back before save_pretrained",
    "module": "there is no wrapper to take off; save_pretrained(folder) writes the whole model",
    "modules": "ranks hold parts of modules; change the model before parallelize",
    "to": "parallelize chose device and type; see its precision",
    "gradient_checkpointing_enable": "write gradient_checkpointing='full' in parallelize",
    "push_to_hub": "upload the folder that save_pretrained wrote",
}


def lacking(name: str) -> str:
    """The sentence for an attribute that there is not."""
    instead = LACKING.get(name.removeprefix("named_").strip("_"))
    return f"a parallelized model has no {name}" + (f": {instead}" if instead else "")


class Parallelized:
    """A model over ranks. Every rank calls the same methods, in the same order, with the same whole
    batches. `config`, `generation_config`: the model's, saved with its weights (the second may be
    None); `is_first`: this is rank 0, which prints; `data_world_size`: how many share a batch."""

    def __init__(
        self, model: TrainedModel, *, micro_batch_size: int | None, seed: int, given: Sequence[nn.Parameter]
    ) -> None:
        self._model, self._world = model, model.ownership.world
        whole: Any = model.result.model
        self.config, self.generation_config = whole.config, getattr(whole, "generation_config", None)
        self.device, self.is_first = self._world.device, self._world.is_first
        self.data_world_size = self._world.layout.data_world_size
        self._step = GradientAccumulator(
            spread=model.spread, world=self._world, keeps_casts=False, scale=LossScale(), balance=model.balance
        )
        self._micro_batch_size, self._seed, self._drops, self._steps = micro_batch_size, seed, drops_out(whole), 0
        self._parts = LocalParts(model.trained)
        self._stepped: Detour = self._parts
        if self._world.layout.shards_states_only:
            self._stepped = Windows(self._parts, world=self._world)
        self._may_be_set = True
        self._handed = Handed(self._stepped, ownership=model.ownership, given=given)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(lacking(name))

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Is refused: there is no forward of a part."""
        raise UnsupportedError(lacking("forward"))

    def __deepcopy__(self, _: Any) -> Any:
        """Is refused: there is one model over the ranks."""
        raise UnsupportedError(lacking("copy"))

    @property
    def training(self) -> bool:
        """Whether dropout is on."""
        return any(module.training for module in self._model.spread.modules)

    def train(self, mode: bool = True) -> Parallelized:
        """Switches dropout on or off."""
        self._model.set_training(mode)
        return self

    def eval(self) -> Parallelized:
        """Switches dropout off."""
        return self.train(False)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's parts of trained weights, under names of the whole; of another stage's, one
        without elements. Norms and sums of gradients are collectives, which every rank calls."""
        return iter(self._handed.named)

    def parameters(self) -> Iterator[nn.Parameter]:
        """As `named_parameters`, without names."""
        return (parameter for _, parameter in self.named_parameters())

    def zero_grad(self) -> None:
        """Frees all gradients; the optimizer's own `zero_grad` does as well."""
        for _, parameter in (*self._handed.named, *self._parts.named, *self._model.trained):
            parameter.grad = None

    def step(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """Forward and backward of a whole batch; its mean loss over trained tokens, the same on
        every rank: a float64 scalar without a graph. Gradients are those of this mean.

        Args:
            batch: all rows of the step, the same on every rank, as collators of Hugging Face make
                them: `input_ids`, `labels` and, where rows are padded on the right,
                `attention_mask`. Each rank trains its share.

        Raises:
            DataError: it is not such a batch, or ranks were given different ones.
            InputError: gradients of another step are still there.
            UnsupportedError: an optimizer was stepped that holds nothing of this model; or a
                parameter was frozen, or has a hook.
            GuardError: copies of a weight have become different.
        """
        self._handed.must_be_stepped()
        for reason in untouched(self.named_parameters()):
            raise UnsupportedError(reason)
        if any(parameter.grad is not None for parameter in self.parameters()):
            raise InputError(
                "gradients of an earlier step are still there: call optimizer.zero_grad() before the next step, "
                "which sets them to None (where it does not hold all parameters, model.zero_grad()). To accumulate, "
                "give step the whole batch and parallelize a micro_batch_size"
            )
        self.zero_grad()
        # Values set by hand since the last step reach the parts that compute.
        if self._may_be_set:
            self._stepped.after_step()
        self._may_be_set = False
        # After the first update too: a mistake of the loop shows there.
        if self._steps == 1 or (self._steps and self._steps % REPLICA_CHECK_STEPS == 0):
            check_replicas(self._world, self._model.trained, when=f"before step {self._steps + 1}")
        with self._share_of(batch) as rows:
            loss = self._step(rows)
        self._steps += 1
        for detour in dict.fromkeys((self._parts, self._stepped)):
            detour.before_step()
        self._handed.arrived()
        vars(loss)["backward"] = _backward
        return loss

    @torch.no_grad()
    def evaluate(self, batch: Mapping[str, Any]) -> float:
        """Mean loss over trained tokens of a whole batch, without gradients; call `eval` first."""
        self._exchange()
        with self._share_of(batch) as rows:
            return self._step.evaluate(rows) / rows.trained_tokens

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """As torch's, over all ranks: scales gradients so that their norm is `max_norm` at most,
        and returns the norm they had, a float64 scalar. `inf` leaves them as they are."""
        # A norm counts each weight once: replicas are left out, parts of all ranks are added.
        counted = {name for name, p in self._model.trained if self._model.ownership.counts(name, p)}
        gradients = {name: plain(p.grad) for name, p in self._parts.named if p.grad is not None}
        norm = norm_of([gradients[name] for name in gradients if name in counted], device=self.device)
        if gradients:
            torch._foreach_mul_([*gradients.values()], (max_norm / (norm + 1e-6)).clamp(max=1.0).float())  # pyright: ignore
        return norm

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes what `from_pretrained`, or `PeftModel.from_pretrained`, reads, and compares it
        with the live weights. Every rank calls it. Raises SaveError: a file action failed;
        GuardError: copies of a weight differ."""
        self._exchange()
        check_replicas(self._world, self._model.parameters, when="before saving")
        save_folder(self._model, Path(folder).resolve())

    def _exchange(self) -> None:
        """Parts set by hand (averages) reach other ranks; and again, set back, before a step."""
        self._stepped.after_step()
        self._may_be_set = True

    @contextmanager
    def _share_of(self, batch: Mapping[str, Any]) -> Iterator[GlobalBatch]:
        """This rank's rows. Inside, dropout draws from a stream of this rank's place; the user's
        random state stays as it was, so loaders that draw from it stay alike on all ranks."""
        shape, draws = self._model.shape, self._drops and self.training
        rows = global_batch(batch, world=self._world, micro_batch_size=self._micro_batch_size, shape=shape)
        gpus = [self.device] if self.device.type == "cuda" else []
        with rows_unpacked(), torch.random.fork_rng(gpus, enabled=draws):
            if draws:
                # By step and place alone, so that what was drawn before has no say.
                torch.manual_seed((self._seed << 32) + self._steps * self._world.size + self._world.stream)
            yield rows


def _backward(*_: Any, **__: Any) -> None:
    raise UnsupportedError("step(batch) was forward and backward of this loss; leave backward out")


def _leave_groups() -> None:
    """At the end of the user's program. A gloo thread releases the last collective's tensors later,
    which would abort a Python shutting down, and torchrun would call a good run failed."""
    if dist.is_initialized():
        dist.destroy_process_group()
        time.sleep(_LET_GO_SECONDS)


def _layout(layout: str | Mapping[str, Any] | Layout) -> Layout:
    layout = Layout() if layout == "single" else layout
    if isinstance(layout, Layout):
        return layout
    if layout == "auto":
        raise InputError("layout auto is chosen by `shardwise plan`; write the layout that it names")
    stated = job_from_data({"model": "given", "layout": layout if isinstance(layout, str) else dict(layout)})
    named = stated.stated_layout
    if not isinstance(named, str):
        return named or Layout()
    size, node = int(os.environ.get("WORLD_SIZE", "1")), os.environ.get("LOCAL_WORLD_SIZE")
    try:
        return Layout.from_strategy(named, world_size=size, gpus_per_node=int(node) if node else None)
    except ValueError as error:
        raise InputError(str(error)) from None
