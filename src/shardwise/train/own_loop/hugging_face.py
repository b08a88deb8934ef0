"""`shardwise.Trainer`: the Trainer of transformers with `layout`, for people who train by it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
import transformers
from torch import nn

from shardwise.errors import UnsupportedError
from shardwise.spec.layout.axes import Layout
from shardwise.train.own_loop.honoured import refuse, refuse_named
from shardwise.train.own_loop.parallelized import Parallelized, lacking, parallelize


class Trainer(transformers.Trainer):
    """As `transformers.Trainer`, over the ranks of a layout: its data order, schedule, logs and callbacks; the step is
    Shardwise's. Every rank loads the whole batch: `per_device_train_batch_size` rows for each data-parallel rank and
    each of `gradient_accumulation_steps`. `layout`, `precision`: as of `parallelize`. Raises UnsupportedError:
    arguments, or methods of a subclass, that would have no effect (`own_loop/honoured.py`)."""

    def __init__(
        self, model: Any, args: Any, *, layout: str | Mapping[str, Any] | Layout, precision: Any = None, **others: Any
    ) -> None:
        refuse(args, others, kind=type(self), ours=Trainer)
        args, rows = copy.copy(args), args.per_device_train_batch_size
        self._whole = model.get_base_model() if hasattr(model, "get_base_model") else model
        chosen: dict[str, Any] = {"gradient_checkpointing": "full" if args.gradient_checkpointing else "none"}
        chosen |= {"precision": precision, "micro_batch_size": rows, "seed": args.seed}
        self.parallelized = parallelize(model, layout, **chosen)
        args.per_device_train_batch_size = rows * self.parallelized.data_world_size * args.gradient_accumulation_steps
        args.gradient_accumulation_steps, args.gradient_checkpointing = 1, False
        vars(args)["activation_checkpointing"] = False  # as transformers 5.23 calls it
        super().__init__(model=_Facade(self.parallelized), args=args, **others)  # pyright: ignore
        clip, accelerator = self.parallelized.clip_grad_norm_, vars(self.accelerator)
        accelerator["clip_grad_norm_"] = lambda _, max_norm, **_others: clip(max_norm)
        accelerator["prepare_model"] = lambda model, **_: model  # DDP is not to wrap it

    def train(self, resume_from_checkpoint: Any = None, *given: Any, **named: Any) -> Any:
        """As there, but from the start. Raises UnsupportedError: something was set since that would have no effect."""
        refuse_named(["resume_from_checkpoint"] if resume_from_checkpoint else [], methods=vars(self))
        refuse(self.args, {"compute_loss_func": self.compute_loss_func}, kind=type(self), ours=Trainer)
        return super().train(None, *given, **named)

    def evaluate(self, *_: Any, **__: Any) -> Any:
        """Is refused; so is `predict`."""
        raise UnsupportedError("shardwise.Trainer does not evaluate; call trainer.parallelized.evaluate(batch)")

    predict = evaluate

    def get_decay_parameter_names(self, model: Any) -> list[str]:  # noqa: ARG002
        """As there, by the modules of the whole model."""
        return super().get_decay_parameter_names(self._whole)

    def get_train_dataloader(self) -> Any:
        """Whole batches on every rank, in the order of one process."""
        from accelerate.data_loader import prepare_data_loader

        accelerator: Any = self.accelerator
        vars(accelerator)["prepare"] = partial(
            prepare_data_loader,
            num_processes=1,
            process_index=0,
            rng_types=list(accelerator.rng_types or ()),
            use_seedable_sampler=accelerator.use_seedable_sampler,
            data_seed=accelerator.dataloader_config.data_seed,
        )
        try:
            return super().get_train_dataloader()
        finally:
            del vars(accelerator)["prepare"]

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:  # noqa: ARG002
        """Forward and backward of a whole batch; its mean loss."""
        self.parallelized.train()
        return self.parallelized.step(inputs).float()

    def get_total_train_batch_size(self, args: Any) -> int:
        """Rows of a step over all ranks."""
        return args.per_device_train_batch_size

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Writes what `from_pretrained` reads; every rank calls it."""
        folder = output_dir or str(self.args.output_dir)
        self.parallelized.save_pretrained(folder)
        if self.processing_class is not None and self.parallelized.is_first:
            self.processing_class.save_pretrained(folder)


class _Facade(nn.Module):
    """Stands where Trainer wants a model: its configuration and this rank's parts of what is trained."""

    def __init__(self, parallelized: Parallelized) -> None:
        super().__init__()
        vars(self)["parallelized"] = parallelized
        # By Trainer set to what is trained with, and saved with the weights.
        self.config, self.generation_config = parallelized.config, parallelized.generation_config
        self.zero_grad = lambda set_to_none=True: parallelized.zero_grad()  # noqa: ARG005
        self.save_pretrained = parallelized.save_pretrained

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:  # noqa: ARG002
        """Names the columns of rows; not to be called."""
        raise UnsupportedError(lacking("forward"))

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Of the parallelized model."""
        return vars(self)["parallelized"].named_parameters()

    def state_dict(self, *_: Any, **__: Any) -> Any:
        """Is refused: ranks hold parts."""
        raise UnsupportedError(lacking("state_dict"))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(lacking(name))
