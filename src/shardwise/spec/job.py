"""Job: what the user asks for, and the strict reader of the job file.

The words are the ecosystem's (Transformers, TRL, PEFT); the global batch is stated, the micro-batch derived. Unknown
keys are errors with the nearest valid key, and all errors of a file are reported at once, each with `file:line`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from shardwise.errors import JobError, Problem
from shardwise.spec.job_errors import problems_in
from shardwise.spec.layout import (
    STRATEGIES,
    Attention,
    Layout,
    LossKind,
    Offload,
    OptimizerName,
    Precision,
    Recompute,
)
from shardwise.spec.located import Located, parse_yaml

Auto = Literal["auto"]
Method = Literal["full", "lora", "qlora"]
Goal = Literal["fastest", "cheapest", "fewest-gpus"]
TrainOn = Literal["auto", "assistant", "completion", "all"]
OverLong = Literal["error", "drop", "truncate"]
RowFormat = Literal[
    "auto",
    "messages",
    "conversations",
    "instruction",
    "prompt_completion",
    "question_answer",
    "query_response",
    "text",
]
Tracker = Literal["tensorboard", "wandb", "mlflow"]

#: Keys that say where and how fast a job runs and what is written, but nothing that changes its result. They may change
#: between a run and its resumption.
HOW_IT_RUNS = frozenset(
    {
        "hardware",
        "goal",
        "layout",
        "output_dir",
        "data.num_rows",
        "train.logging_steps",
        "train.report_to",
        "train.save_steps",
        "train.save_total_limit",
        "train.eval_steps",
        "train.micro_batch_size",
        "train.gradient_checkpointing",
        "train.offload",
        "train.loss",
        "train.attn_implementation",
        "train.compile",
    }
)

Text = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"\A[^\x00]+\z")]
Whole = Annotated[int, Field(ge=1, le=10**15)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


class SourceSpec(_Spec):
    """One data set.

    Attributes:
        path: a file (JSONL, JSON, CSV, Parquet), a folder of such files, or a hub id.
        weight: how often its rows are seen per epoch; 0.5 is half of them, another half each epoch.
        split: split of a hub data set.
        name: configuration of a hub data set.
        format: how rows are read; `auto` recognises them by their columns.
    """

    path: Text
    weight: Positive = 1.0
    split: str = "train"
    name: str | None = None
    format: RowFormat = "auto"


def _as_sources(value: Any) -> Any:
    """`path` may be one path, or a list of paths and of {path, weight, ...}."""
    items: list[Any] = cast(list[Any], value) if isinstance(value, list) else [value]
    return [{"path": item} if isinstance(item, str) else item for item in items]


class DataSpec(_Spec):
    """The rows to train on and how they become token sequences.

    Attributes:
        path: the sources; none only for planning, with `num_rows` stated.
        max_length: tokens per sequence at most.
        packing: several rows in one sequence, apart in attention and positions.
        train_on: which tokens count in the loss; `auto` is the assistant's for chats, the completion for pairs, all
            for plain text.
        over_long: what happens to rows longer than `max_length`.
        eval_path: rows to evaluate on.
        eval_fraction: or the share of the training rows set aside for it.
        chat_template: path of a Jinja file that replaces the tokenizer's own template.
        shuffle: a new order each epoch, from (seed, epoch).
        num_rows: for planning without data.
    """

    path: Annotated[list[SourceSpec], BeforeValidator(_as_sources)] = Field(default_factory=list[SourceSpec])
    max_length: Whole = 1024
    packing: bool = False
    train_on: TrainOn = "auto"
    over_long: OverLong = "error"
    eval_path: Annotated[list[SourceSpec], BeforeValidator(_as_sources)] = Field(default_factory=list[SourceSpec])
    eval_fraction: Share = 0.0
    chat_template: Text | None = None
    shuffle: bool = True
    num_rows: Whole | None = None

    @model_validator(mode="after")
    def _one_source_of_evaluation(self) -> Self:
        if self.eval_path and self.eval_fraction:
            raise ValueError("eval_path and eval_fraction exclude each other; keep one")
        return self


class LoraSpec(_Spec):
    """LoRA in PEFT's words; `target_modules` is `all-linear` or a list of module names."""

    r: Whole = 16
    lora_alpha: Positive = 32
    lora_dropout: Share = 0.0
    target_modules: Literal["all-linear"] | list[str] = "all-linear"
    use_rslora: bool = False
    use_dora: bool = False
    modules_to_save: list[str] = Field(default_factory=list[str])
    bias: Literal["none"] = "none"


class TrainSpec(_Spec):
    """Optimisation in the words of `transformers.TrainingArguments`, and what `auto` leaves to the planner.

    Attributes:
        global_batch_size: sequences per optimizer step over all GPUs.
        adam_beta1, adam_beta2, adam_epsilon: AdamW's constants.
        save_steps: checkpoint every so many steps; 0 saves none but the final model.
        save_total_limit: verified checkpoints to keep.
        eval_steps: evaluate every so many steps; 0 at the end only, where there is evaluation data.
        logging_steps: steps between plain progress lines; metrics.jsonl has every step.
        full_determinism: deterministic kernels, slower.
    """

    global_batch_size: Annotated[int, Field(ge=1, le=10**9)] = 8
    num_train_epochs: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1.0
    max_steps: Whole | None = None
    learning_rate: Positive = 2e-4
    lr_scheduler_type: Literal["linear", "cosine", "constant", "constant_with_warmup"] = "linear"
    warmup_ratio: Share = 0.0
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    max_grad_norm: NotNegative = 1.0
    weight_decay: NotNegative = 0.0
    adam_beta1: Share = 0.9
    adam_beta2: Share = 0.999
    adam_epsilon: Positive = 1e-8
    momentum: Share = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42
    save_steps: Annotated[int, Field(ge=0)] = 0
    save_total_limit: Whole | None = 2
    eval_steps: Annotated[int, Field(ge=0)] = 0
    logging_steps: Whole = 10
    report_to: Annotated[list[Tracker], BeforeValidator(lambda v: [v] if isinstance(v, str) else v)] = Field(
        default_factory=list[Tracker]
    )
    full_determinism: bool = False
    precision: Precision | Auto = "auto"
    optimizer: OptimizerName | Auto = "auto"
    micro_batch_size: Whole | Auto = "auto"
    gradient_checkpointing: Recompute | Auto = "auto"
    offload: Offload | Auto = "auto"
    loss: LossKind | Auto = "auto"
    attn_implementation: Attention | Auto = "auto"
    compile: bool = False

    @model_validator(mode="after")
    def _one_warmup(self) -> Self:
        if self.warmup_ratio and self.warmup_steps:
            raise ValueError("warmup_ratio and warmup_steps exclude each other; keep one")
        return self

    @model_validator(mode="after")
    def _momentum_has_an_effect(self) -> Self:
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum is set, which optimizer {self.optimizer} does not have; write optimizer: sgd")
        return self

    @model_validator(mode="after")
    def _adam_constants_have_an_effect(self) -> Self:
        fields = type(self).model_fields
        changed = [n for n in ("adam_beta1", "adam_beta2", "adam_epsilon") if getattr(self, n) != fields[n].default]
        if changed and self.optimizer == "sgd":
            raise ValueError(f"{changed[0]} is set, which optimizer sgd does not have; remove it")
        return self


class LayoutSpec(_Spec):
    """A product of axes; what is left out is 1. ZeRO stages 1 and 2 keep gathered weights whatever else is stated."""

    dp_replicate: Whole = 1
    dp_shard: Whole = 1
    tp: Whole = 1
    pp: Whole = 1
    cp: Whole = 1
    ep: Whole = 1
    zero_stage: Literal[1, 2, 3] = 3
    reshard_after_forward: bool = True
    schedule: Literal["1f1b", "gpipe", "interleaved", "zero_bubble", "sequential"] = "1f1b"
    min_num_params: Annotated[int, Field(ge=0, le=10**15)] = 0
    prefetch: Whole = 1

    @model_validator(mode="after")
    def _degrees_agree(self) -> Self:
        self.to_layout()
        if self.dp_shard == 1 and (self.zero_stage != 3 or not self.reshard_after_forward):
            raise ValueError("zero_stage and reshard_after_forward have no effect without dp_shard; remove them")
        if self.pp == 1 and self.schedule != "1f1b":
            raise ValueError(f"schedule {self.schedule} has no effect without pp; remove it")
        return self

    @property
    def changed(self) -> frozenset[str]:
        """Names of the keys that are not at their defaults."""
        fields = type(self).model_fields
        return frozenset(name for name in fields if getattr(self, name) != fields[name].default)

    def to_layout(self) -> Layout:
        """The noun both wings use."""
        degrees: dict[str, Any] = self.model_dump()
        degrees["reshard_after_forward"] = self.reshard_after_forward and self.zero_stage == 3
        return Layout(**degrees)


def _as_alternatives(value: Any) -> Any:
    """Alternatives may be a list, also one written as text, as in a flag; they are kept separated by commas."""
    if isinstance(value, str) and value.strip().startswith("[") and value.strip().endswith("]"):
        return value.strip()[1:-1].strip()
    if not isinstance(value, list):
        return value
    items = cast(list[Any], value)
    return ", ".join(items) if items and all(isinstance(item, str) for item in items) else items


class Job(_Spec):
    """What the user asks; every `auto` is still open.

    Attributes:
        model: hub id, folder, config.json or catalogue name.
        hardware: `[NODES x] GPUS x NAME` or `cpu:N`; None is this machine. For `plan` also a list of those, or `any`.
        layout: `auto`, a strategy name, or a product of axes.
    """

    model: Text
    data: DataSpec = DataSpec()
    method: Method = "full"
    lora: LoraSpec | None = None
    train: TrainSpec = TrainSpec()
    hardware: Annotated[str | None, BeforeValidator(_as_alternatives)] = None
    goal: Goal = "fastest"
    layout: Literal["auto", "mp", "ddp", "zero1", "zero2", "fsdp", "hsdp", "tp", "pp"] | LayoutSpec = "auto"
    output_dir: Text = "runs/first"

    @model_validator(mode="after")
    def _lora_matches_method(self) -> Self:
        if self.lora is not None and self.method == "full":
            raise ValueError("lora: is set but method is full; write method: lora (or qlora), or remove lora:")
        return self

    @model_validator(mode="after")
    def _units_are_gathered(self) -> Self:
        if not isinstance(self.layout, LayoutSpec):
            return self
        asked = [name for name in ("min_num_params", "prefetch") if name in self.layout.changed]
        sharded = self.layout.to_layout().weight_shards > 1 or self.train.offload in ("parameters", "all")
        if asked and not sharded:
            raise ValueError(
                f"layout: {asked[0]} has no effect where weights are whole on every GPU; write dp_shard above 1 with "
                "zero_stage 2 or 3, or remove it"
            )
        return self

    @model_validator(mode="after")
    def _evaluation_has_data(self) -> Self:
        if self.train.eval_steps and not (self.data.eval_path or self.data.eval_fraction or self.data.num_rows):
            raise ValueError(
                "train: eval_steps is set but there is nothing to evaluate on; add data.eval_fraction or data.eval_path"
            )
        return self

    @property
    def adapters(self) -> LoraSpec | None:
        """The LoRA settings in force, or None for full fine-tuning."""
        if self.method == "full":
            return None
        return self.lora or LoraSpec()

    def to_json(self) -> dict[str, Any]:
        """Plain data with every default filled in."""
        return self.model_dump(mode="json")


def read_job(path: str | Path, *, overrides: list[str] | None = None) -> Job:
    """Reads a job file, then applies `--set key.path=value` overrides.

    Relative data, model and output paths stay relative to the working directory, as in the shell.

    Raises:
        JobError: the file cannot be read or is not a valid job; one problem per place, each with `file:line`.
    """
    file = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise JobError(Problem(where=file, message="there is no such file; write a job file or name another")) from None
    except IsADirectoryError:
        raise JobError(Problem(where=file, message="is a folder; expected a YAML job file")) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise JobError(
            Problem(where=f"{file}:{line}", message="is not UTF-8 text; save the job file as UTF-8")
        ) from None
    except OSError as error:
        raise JobError(Problem(where=file, message=f"cannot be read: {error.strerror}")) from None
    return parse_job(text, file=file, overrides=overrides)


def parse_job(text: str, *, file: str = "job.yaml", overrides: list[str] | None = None) -> Job:
    """Like `read_job`, from text."""
    located = parse_yaml(text, file=file)
    value: object = located.value
    if not isinstance(value, dict):
        found = "nothing" if value is None else f"a {type(value).__name__}"
        raise JobError(
            Problem(where=f"{file}:1", message=f"found {found}; expected keys such as model:, data:, method:")
        )
    data = cast(dict[str, Any], value)
    origins: dict[tuple[str | int, ...], str] = {}
    for override in overrides or []:
        _apply_override(data, override, origins)
    return job_from_data(data, located=located, origins=origins)


def job_from_data(
    data: dict[str, Any],
    *,
    located: Located | None = None,
    origins: dict[tuple[str | int, ...], str] | None = None,
) -> Job:
    """Validates plain data as a job; `located` and `origins` say where each key came from.

    Raises:
        JobError: one problem per invalid key.
    """
    try:
        return Job.model_validate(data)
    except ValidationError as error:
        raise JobError(problems_in(data, error, root=Job, located=located, origins=origins or {})) from None


def _apply_override(data: dict[str, Any], override: str, origins: dict[tuple[str | int, ...], str]) -> None:
    where = f"--set {override}"
    name, equals, text = override.partition("=")
    path = tuple(name.strip().split("."))
    if not equals or not all(path):
        raise JobError(Problem(where=where, message="expected KEY=VALUE, for example --set train.learning_rate=1e-4"))
    try:
        value = parse_yaml(text, file="--set").value
    except JobError as error:
        raise JobError(Problem(where=where, message=error.problems[0].message)) from None
    at = data
    for key in path[:-1]:
        below = at.setdefault(key, {})
        if not isinstance(below, dict):
            at[key] = below = {}
        at = cast(dict[str, Any], below)
    at[path[-1]] = value
    origins[path] = where


__all__ = [
    "STRATEGIES",
    "DataSpec",
    "Job",
    "LayoutSpec",
    "LoraSpec",
    "SourceSpec",
    "TrainSpec",
    "job_from_data",
    "parse_job",
    "read_job",
]
