"""What another trainer's files can say of a plan, and the sentences that refuse the rest"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwise.catalog.calibration import known_stacks
from shardwise.catalog.prices import read_table
from shardwise.interop.chosen import Chosen


@dataclass(frozen=True, kw_only=True)
class TrainerLimits:
    """What is exported to one trainer. `ways`: of spreading, and their products where `products`;
    `whole_in_bf16`: trained weights are in bfloat16 where they are whole on each GPU, and in
    float32 where sharded; `because`: a value that is refused -> why."""

    target: str
    ways: Sequence[str]
    methods: Sequence[str]
    precisions: Sequence[str]
    optimizers: Sequence[str] = ("adamw", "adamw_foreach", "sgd")
    offloads: Sequence[str] = ("none",)
    recomputes: Sequence[str] = ("none", "full")
    objectives: Sequence[str] = ("sft",)
    products: bool = False
    on_cpu: Sequence[str] = ()
    whole_in_bf16: bool = False
    because: Mapping[str, str] = field(default_factory=dict[str, str])

    def refusals(self, chosen: Chosen) -> Iterator[str]:
        """Every reason why these files would train something else, as sentences."""
        execution, layout = chosen.execution, chosen.layout
        ways = layout.strategy.split(" x ")
        foreign = [way for way in ways if way not in self.ways]
        if foreign or (len(ways) > 1 and not self.products):
            yield self._sentence("layout", layout.strategy, self.ways, why=foreign[0] if foreign else None)
        elif chosen.on_cpu and not set(ways) <= set(self.on_cpu):
            yield f"{self.target} spreads {layout.strategy} over GPUs only, and hardware is {chosen.cluster.name}"
        rows = [
            ("method", chosen.job.method, self.methods),
            ("objective", chosen.job.objective, self.objectives),
            ("train.precision", execution.precision, self.precisions),
            ("train.optimizer", execution.optimizer, self.optimizers),
            ("train.offload", execution.offload, self.offloads),
            ("train.gradient_checkpointing", execution.gradient_checkpointing, self.recomputes),
        ]
        yield from (self._sentence(key, value, known) for key, value, known in rows if value not in known)
        yield from self._of_units(chosen)
        if chosen.job.rope_scaling is not None:
            yield (
                f"rope_scaling is not exported to {self.target}, which reads the model's own; write rope_parameters "
                "into a copy of its config.json, and name that as model"
            )

    def _sentence(self, key: str, value: str, known: Sequence[str], *, why: str | None = None) -> str:
        reason = self.because.get(why or value)
        said = f"{key} {value} is not exported to {self.target}" + (f": {reason}" if reason else "")
        others = f", or one of {', '.join(known[1:])}" if known[1:] else ""
        return f"{said}; plan again with --set {key}={known[0]}{others}"

    def _of_units(self, chosen: Chosen) -> Iterator[str]:
        layout, execution = chosen.layout, chosen.execution
        if layout.min_num_params or layout.prefetch > 1:
            key = "min_num_params" if layout.min_num_params else "prefetch"
            yield f"layout.{key} is not exported to {self.target}, where each block is gathered alone; leave it out"
        if execution.offload != "none" and layout.world_size > layout.dp_shard == 1:
            shards = f"{self.target} offloads what it shards, and {layout.strategy} shards nothing"
            yield f"{shards}; plan again with --set layout=fsdp"
        rows = execution.micro_batch_size * execution.gradient_accumulation_steps * layout.data_world_size
        asked = chosen.job.train.global_batch_size
        if rows != asked:
            yield (
                f"a global batch of {asked} is no product of micro-batch {execution.micro_batch_size} and "
                f"{layout.data_world_size} ranks, and {self.target} cannot fill up with rows that do not count; plan "
                "again with another train.global_batch_size or train.micro_batch_size"
            )


def limits_of(target: str) -> TrainerLimits:
    """What limits.toml says of a target."""
    return TrainerLimits(target=target, **read_table("limits", package="shardwise.interop")[target])


def left_to_the_script(chosen: Chosen) -> list[str]:
    """What of the plan the user's own script says, for the same training."""
    train, execution = chosen.job.train, chosen.execution
    stored = "bfloat16" if execution.precision == "bf16" else "float32"
    forwards = execution.gradient_accumulation_steps
    decay = f"weight_decay={train.weight_decay!r}" + (" on matrices, 0 on norms and biases" * bool(train.weight_decay))
    betas = f"betas=({train.adam_beta1!r}, {train.adam_beta2!r}), eps={train.adam_epsilon!r}"
    kind, own = ("SGD", f"momentum={train.momentum!r}") if execution.optimizer == "sgd" else ("AdamW", betas)
    warmup = f"{100 * train.warmup_ratio:g} %" if train.warmup_ratio else f"{train.warmup_steps} steps"
    lines = [
        f'model: from_pretrained("{chosen.model}", dtype=torch.{stored}, '
        f'attn_implementation="{execution.attention_elsewhere}")',
        f"batch: {execution.micro_batch_size} rows a process and forward, {forwards} forward{'s' * (forwards > 1)} "
        f"a step: {train.global_batch_size} rows a step in all",
        f"optimizer: {kind}(lr={train.learning_rate!r}, {own}, {decay})",
        f"schedule: {train.lr_scheduler_type} with {warmup} of warmup",
        "loss: the sum over trained tokens, divided by their number in the whole global batch",
    ]
    if chosen.job.adapters is not None:
        lines.append(f"adapters: {lora_config(chosen)}")
    return lines


def lora_config(chosen: Chosen) -> str:
    """PEFT's LoraConfig of the job's adapters, as Python."""
    lora = chosen.job.adapters
    assert lora is not None  # noqa: S101
    words = {"r": lora.r, "lora_alpha": lora.lora_alpha, "lora_dropout": lora.lora_dropout}
    words |= {"target_modules": lora.target_modules, "use_rslora": lora.use_rslora, "use_dora": lora.use_dora}
    words |= {"modules_to_save": lora.modules_to_save or None, "task_type": "CAUSAL_LM"}
    return f"LoraConfig({', '.join(f'{name}={value!r}' for name, value in words.items())})"


def memory_notes(chosen: Chosen, *, chunks: bool = False) -> list[str]:
    """What takes more memory elsewhere. `chunks`: the trainer makes logits in chunks too."""
    said: list[str] = []
    if chosen.execution.loss == "chunked" and not chunks:
        said.append(
            "the plan makes logits in chunks, and this trainer makes all at once, unless its script does otherwise: "
            "`shardwise plan --set train.loss=full` says whether that fits"
        )
    if chosen.job.method == "lora" and chosen.execution.precision == "mixed":
        said.append("the plan keeps frozen weights in bfloat16, and this trainer in the type that the script loads")
    return said


def source_refusals(chosen: Chosen, target: str) -> Iterator[str]:
    """Why rows cannot be named in a file of the target's."""
    job, data = chosen.job, chosen.job.data
    if len(data.path) != 1 or data.path[0].weight != 1:
        yield f"data.path is exported to {target} where it is one source of weight 1; name one"
    if data.packing:
        yield f"data.packing is not exported to {target}, which packs otherwise; leave it out"
    if data.train_on == "completion":
        yield f"data.train_on: completion is not exported to {target}, which trains every answer of a chat; write auto"
    for key in ("columns", "chat_template") if target != "trl" else ():
        if getattr(data, key):
            yield f"data.{key} is not exported to {target}; write rows and tokenizer so that none is needed"
    if job.adapters is not None and job.adapters.lora_alpha % 1 and target in ("axolotl", "llama-factory"):
        yield f"lora.lora_alpha {job.adapters.lora_alpha} is not exported to {target}, where it is a whole number"
    if job.train.disable_dropout and job.objective == "sft":
        yield f"train.disable_dropout is not exported to {target}, which has no word for it; leave it out"
    if job.adapters is not None and chosen.execution.precision == "bf16":
        yield f"train.precision bf16 is not exported to {target} for adapters, which PEFT keeps in float32; write mixed"


def said_of_rows(chosen: Chosen, *, cuts: bool) -> Iterator[str]:
    """What differs in the rows that are read. `cuts`: the trainer cuts long rows in any case."""
    data = chosen.job.data
    if data.shuffle:
        yield "rows come in an order of transformers' own; with data.shuffle: false both take them as they stand"
    if cuts and data.over_long != "truncate":
        yield f"rows longer than max_length are cut there; the job says over_long: {data.over_long}"
    if data.eval_path or data.eval_fraction or chosen.job.train.eval_steps:
        yield "nothing is evaluated there; its rows are all of data.path"


#: Endings of files that hold the same rows for `datasets` as for Shardwise -> its loader of them.
LOADERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}

OPTIMIZERS = {"adamw": "adamw_torch_fused", "adamw_foreach": "adamw_torch", "sgd": "sgd"}


def sft_settings(chosen: Chosen) -> dict[str, Any]:
    """What trainers on top of transformers' Trainer call as it does."""
    train = chosen.job.train
    length = {"max_steps": chosen.steps} if chosen.steps else {"num_train_epochs": train.num_train_epochs}
    return {
        **usual_settings(chosen),
        **length,
        "optim": OPTIMIZERS[chosen.execution.optimizer],
        **({"save_steps": train.save_steps} if train.save_steps else {"save_strategy": "no"}),
        "save_total_limit": train.save_total_limit,
        "full_determinism": train.full_determinism,
    }


def usual_settings(chosen: Chosen) -> dict[str, Any]:
    """Arguments of transformers' Trainer that mean what a job says."""
    train, execution = chosen.job.train, chosen.execution
    kind, warmup = train.lr_scheduler_type, train.warmup_steps or train.warmup_ratio
    return {
        "output_dir": chosen.job.output_dir,
        "per_device_train_batch_size": execution.micro_batch_size,
        "gradient_accumulation_steps": execution.gradient_accumulation_steps,
        "learning_rate": train.learning_rate,
        "lr_scheduler_type": "constant_with_warmup" if kind == "constant" and warmup else kind,
        "warmup_steps": warmup,  # transformers takes numbers below 1 for a share
        **{key: getattr(train, key) for key in ("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")},
        "max_grad_norm": train.max_grad_norm,
        "seed": train.seed,
        "logging_steps": train.logging_steps,
        "report_to": train.report_to or "none",
    }


#: DeepSpeed's stage of each layout.
_STAGES = {"single": 0, "ddp": 0, "zero1": 1, "zero2": 2, "fsdp": 3}


def zero_optimization(chosen: Chosen) -> dict[str, Any]:
    """DeepSpeed's key of that name."""
    execution = chosen.execution
    host = {"device": "cpu", "pin_memory": not chosen.on_cpu}
    stage = 3 if execution.parameters_on_host else _STAGES[chosen.layout.strategy]
    zero: dict[str, Any] = {"stage": max(stage, 1) if execution.optimizer_on_host else stage}
    if execution.optimizer_on_host:
        zero["offload_optimizer"] = host
    if execution.parameters_on_host:
        zero["offload_param"] = host
    if zero["stage"]:
        # By default 5e8 elements: of two types, one or both in float32, 3 to 4 GB of each GPU.
        zero["reduce_bucket_size"] = known_stacks()["deepspeed"].bucket
    if stage == 3:
        # By default weights stay whole that are used again within 1e9 elements.
        zero["stage3_max_reuse_distance"] = 0
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    return zero


def zero_of(chosen: Chosen) -> dict[str, Any] | None:
    """Likewise for trainers that start DeepSpeed where states are sharded; None elsewhere."""
    whole = _STAGES.get(chosen.layout.strategy, 0) == 0 and not chosen.execution.parameters_on_host
    return None if whole else zero_optimization(chosen)
