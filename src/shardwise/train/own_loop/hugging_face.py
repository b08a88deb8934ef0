"""`shardwise.Trainer`: the Trainer of transformers with `layout`, for people who train by it."""

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import transformers
from torch import nn

from shardwise.errors import UnsupportedError
from shardwise.spec.layout.axes import Layout
from shardwise.train.own_loop.parallelized import Parallelized, lacking, parallelize

# ruff: noqa: SIM905
#: Training arguments that mean what they mean there. The last four lines do nothing there either,
#: as long as another one, which is refused, is off; and scripts alone read `do_*`.
ARGUMENTS = frozenset(
    """output_dir per_device_train_batch_size num_train_epochs max_steps learning_rate lr_scheduler_type
    lr_scheduler_kwargs warmup_steps warmup_ratio optim optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon
    gradient_accumulation_steps max_grad_norm tf32 activation_checkpointing gradient_checkpointing use_cache
    logging_dir logging_strategy logging_steps logging_first_step log_on_each_node logging_nan_inf_filter log_level
    log_level_replica disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id
    trackio_static_space_id save_strategy full_determinism seed data_seed use_cpu dataloader_drop_last
    dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
    dataloader_multiprocessing_context dataloader_in_order remove_unused_columns train_sampling_strategy
    length_column_name skip_memory_metrics local_rank
    do_train do_eval do_predict per_device_eval_batch_size eval_steps eval_delay eval_accumulation_steps
    eval_do_concat_batches prediction_loss_only save_steps save_total_limit save_only_model hub_model_id hub_strategy
    hub_private_repo hub_revision""".split()
)


def _reentrant_alone(value: Any) -> bool:
    return not value or set(value) == {"use_reentrant"}


#: Those of which some values are: which, and what to do instead of the others.
VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "save_strategy": (lambda value: value == "no", "write save_strategy='no' and call save_model"),
    "optim": (
        lambda value: not any(part in getattr(value, "value", value) for part in ("lomo", "8bit")),
        "these follow modules; use adamw_torch, or `shardwise train` with adamw_8bit",
    ),
    "train_sampling_strategy": (lambda value: value != "batch_rebalance", "write random or group_by_length"),
    "accelerator_config": (lambda value: value == type(value)(), "the loader gives every rank the whole batch"),
    "label_names": (lambda value: list(value) == ["labels"], "the label is named labels"),
    "activation_checkpointing_kwargs": (_reentrant_alone, "leave it out"),
    "gradient_checkpointing_kwargs": (_reentrant_alone, "leave it out"),
}

#: What to do instead of others.
INSTEAD = {
    "eval_strategy": "write eval_strategy='no', and call parallelized.evaluate",
    "bf16": "write precision='mixed', or load the model in bfloat16",
    "fp16": "write precision='mixed'",
    "fsdp": "write layout='fsdp'",
    "resume_from_checkpoint": "use `shardwise train`, which resumes",
    "dataloader_drop_last": "with gradient_accumulation_steps it would drop the rows of several micro-batches",
    "push_to_hub": "upload the folder that save_model wrote",
    "optimizers": "they were made before the model is spread: give optimizer_cls_and_kwargs, or override "
    "create_optimizer and create_scheduler in a subclass",
    "model_init": "give the model",
    **dict.fromkeys(("deepspeed", "parallelism_config"), "write a layout in its place"),
    **dict.fromkeys(("eval_dataset", "compute_metrics"), "call parallelized.evaluate"),
    **dict.fromkeys(
        ("compute_loss_func", "compute_loss"), "the loss is the mean over trained tokens; use transformers.Trainer"
    ),
}

#: Arguments of the constructor beside `model`, `args` and our own.
GIVEN = ("data_collator", "train_dataset", "processing_class", "callbacks", "optimizer_cls_and_kwargs")

#: Methods that are called here as there, so that a subclass may have its own.
METHODS = frozenset(
    """train create_accelerator_and_postprocess get_train_dataloader num_examples _get_dataloader _get_train_sampler
    _set_signature_columns_if_needed _remove_unused_columns _get_collator_with_removed_columns
    create_optimizer_and_scheduler create_optimizer create_scheduler get_optimizer_cls_and_kwargs
    get_decay_parameter_names _get_learning_rate _inner_training_loop _prepare_for_training _run_epoch
    _finalize_training training_step _maybe_log_save_evaluate get_batch_samples set_initial_training_values
    get_total_train_batch_size _clip_grad_norm _get_grad_norm save_model log store_flos floating_point_ops
    add_callback pop_callback remove_callback is_local_process_zero is_world_process_zero get_learning_rates
    get_num_trainable_parameters get_optimizer_group log_metrics metrics_format save_metrics save_state""".split()
)


def refuse(args: Any, given: Mapping[str, Any], *, kind: type, ours: type) -> None:
    """Raises UnsupportedError: names training arguments, constructor arguments (`given`) and
    methods of the trainer's class `kind`, maybe a subclass of `ours`, that would have no effect."""
    usual = inspect.signature(transformers.Trainer.__init__).parameters
    others = given.keys() & usual.keys() - {*GIVEN}
    names = [*_arguments(args), *(name for name in given if name in others and given[name] != usual[name].default)]
    refuse_named(names, (name for one in kind.__mro__[: kind.__mro__.index(ours)] for name in vars(one)))


def refuse_named(names: list[str], methods: Any = ()) -> None:
    """Raises UnsupportedError: there are such names, or such methods are not called."""
    own = {name for name in methods if hasattr(transformers.Trainer, name) and not name.startswith("__")}
    reasons: list[str] = []
    for name in dict.fromkeys([*names, *sorted(own - METHODS)]):
        instead = VALUES[name][1] if name in VALUES else INSTEAD.get(name)
        reasons.append(f"{name} ({instead})" if instead else name)
    if reasons:
        raise UnsupportedError(
            f"shardwise.Trainer does not honour {', '.join(reasons)}: nothing would come of it; leave it out. What is "
            "honoured is listed in docs/howto/loop.md"
        )


def _arguments(args: Any) -> Iterator[str]:
    """Names of fields that have another value than by default, and no effect."""
    for field in dataclasses.fields(args):
        name, value = field.name, getattr(args, field.name)
        usual = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        stated = (value or None) != (usual or None) or name == "save_strategy"
        if name == "dataloader_drop_last" and value and args.gradient_accumulation_steps > 1:
            yield name
        if stated and not (VALUES[name][0](value) if name in VALUES else name in ARGUMENTS):
            yield name


class Trainer(transformers.Trainer):
    """As `transformers.Trainer`, over the ranks of a layout: its data order, schedule, logs and
    callbacks; the step is Shardwise's. Every rank loads the whole batch:
    `per_device_train_batch_size` rows for each data-parallel rank and each of
    `gradient_accumulation_steps`. `layout`, `precision`: as of `parallelize`. Raises
    UnsupportedError: arguments, or methods of a subclass, that would have no effect
    (`docs/howto/loop.md`)."""

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
        """As there, from the start. Raises UnsupportedError: a later setting has no effect."""
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
    """Stands in for Trainer's model: its configuration and this rank's parts of what is trained."""

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
