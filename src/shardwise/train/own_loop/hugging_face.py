"""`shardwise.Trainer`: the Trainer of transformers with `layout`, for people who train by it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import transformers
from torch import nn

from shardwise.errors import UnsupportedError
from shardwise.spec.layout.axes import Layout
from shardwise.train.own_loop.parallelized import Parallelized, parallelize


class Trainer(transformers.Trainer):
    """As `transformers.Trainer`, over the ranks of a layout: its data order, schedule, logs and callbacks; the step is
    Shardwise's. Every rank loads the whole batch: `per_device_train_batch_size` rows for each data-parallel rank and
    each of `gradient_accumulation_steps`.

    Args:
        layout, precision: as of `parallelize`.

    Raises:
        UnsupportedError: something is asked of it that it does not do: evaluation, or checkpoints to resume from.
    """

    def __init__(
        self,
        model: nn.Module,
        args: transformers.TrainingArguments,
        *,
        layout: str | Mapping[str, Any] | Layout,
        precision: Any = None,
        **others: Any,
    ) -> None:
        _refuse(args)
        args, rows = copy.copy(args), args.per_device_train_batch_size
        recompute = "full" if args.gradient_checkpointing else "none"
        self.parallelized = parallelize(
            model,
            layout,
            precision=precision,
            gradient_checkpointing=recompute,
            micro_batch_size=rows,
            seed=args.seed,
        )
        args.per_device_train_batch_size = rows * self.parallelized.data_world_size * args.gradient_accumulation_steps
        args.gradient_accumulation_steps, args.gradient_checkpointing = 1, False
        super().__init__(model=_Facade(self.parallelized), args=args, **others)  # pyright: ignore
        clip = self.parallelized.clip_grad_norm_
        vars(self.accelerator)["clip_grad_norm_"] = lambda _, max_norm, **_others: clip(max_norm)
        vars(self.accelerator)["prepare_model"] = lambda model, **_: model  # DDP is not to wrap it

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:  # noqa: ARG002
        """The optimizer of the arguments, over this rank's parts; decay of matrices only."""
        if self.optimizer is None:
            kind, settings = self.get_optimizer_cls_and_kwargs(self.args)
            named = list(self.parallelized.named_parameters())
            matrices = [p for _, p in named if p.ndim >= 2]
            others = [p for _, p in named if p.ndim < 2]
            groups = [
                {"params": matrices, "weight_decay": self.args.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ]
            self.optimizer = kind([group for group in groups if group["params"]], **settings)
        return self.optimizer

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
    """Stands where Trainer wants a model; without parameters."""

    def __init__(self, parallelized: Parallelized) -> None:
        super().__init__()
        self._clear = parallelized.zero_grad

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:  # noqa: ARG002
        """Names the columns of rows; not to be called."""
        raise UnsupportedError("a parallelized model is called by step(batch) and evaluate(batch)")

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002
        """Of the parallelized model."""
        self._clear()


def _refuse(args: Any) -> None:
    if str(getattr(args.eval_strategy, "value", args.eval_strategy)) != "no":
        raise UnsupportedError("shardwise.Trainer does not evaluate; use eval_strategy='no', and parallelized.evaluate")
    if str(getattr(args.save_strategy, "value", args.save_strategy)) != "no":
        raise UnsupportedError(
            "shardwise.Trainer writes no checkpoints to resume from; use save_strategy='no' and save_model, or "
            "`shardwise train`"
        )
    if args.bf16 or args.fp16:
        raise UnsupportedError("bf16 and fp16 are the step's own here; leave them out, and write precision='mixed'")
