"""Job: what the user asks for, as strict models in the words of Transformers, TRL and PEFT."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self, cast

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from shardwise.spec.cluster import Cluster
from shardwise.spec.job.data import DataSpec
from shardwise.spec.job.preference import WITH_REFERENCE, Objective, PreferenceSpec
from shardwise.spec.job.rope import Rope
from shardwise.spec.job.strict import NotNegative, Place, Positive, Share, Strict, Whole
from shardwise.spec.layout.axes import Layout, as_product
from shardwise.spec.layout.execution import Attention, Checkpointing, LossKind, Offload, Precision
from shardwise.spec.layout.optimizers import OPTIMIZER_RULES, OptimizerName, OptimizerRule

Auto = Literal["auto"]
Method = Literal["full", "lora", "qlora"]
Goal = Literal["fastest", "cheapest", "fewest-gpus"]
Tracker = Literal["tensorboard", "wandb", "mlflow"]
SaveType = Literal["float32", "bfloat16", "float16", "float64"]
Strategy = Literal["mp", "ddp", "zero1", "zero2", "fsdp", "hsdp", "tp", "pp", "cp"]

#: Keys that say where and how fast a job runs and what is written, but nothing that changes its
#: result. They may change between a run and its resumption.
HOW_IT_RUNS = frozenset(
    (
        *("hardware", "goal", "layout", "output_dir", "rent", "data.num_rows", "train.logging_steps"),
        *("train.report_to", "train.save_steps", "train.save_total_limit", "train.eval_steps"),
        *("train.micro_batch_size", "train.gradient_checkpointing", "train.offload", "train.loss", "train.mlp"),
        *("train.attn_implementation", "train.compile"),
    )
)

#: The learning rate of a job that states none: adapters take ten times the rate of whole weights
#: (Schulman et al., "LoRA Without Regret", 2025).
USUAL_RATES: dict[Method, float] = {"full": 2e-5, "lora": 2e-4, "qlora": 2e-4}

#: The same of preferences: TRL's, and ten times that for adapters.
PREFERENCE_RATES: dict[Method, float] = {"full": 1e-6, "lora": 1e-5, "qlora": 1e-5}

#: How long a job trains. A run may go on with another length; rates are then those of the new one.
LENGTH = frozenset({"train.max_steps", "train.num_train_epochs"})


def differences(before: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(key, before, now) of what differs and may not in one run, in the order of a job file."""
    if name in HOW_IT_RUNS | LENGTH or before == now:
        return
    if isinstance(before, dict) and isinstance(now, dict):
        old, new = cast(dict[str, Any], before), cast(dict[str, Any], now)
        for key in {**new, **old}:
            yield from differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    else:
        yield name, before, now


class LoraSpec(Strict):
    """LoRA in PEFT's words; `target_modules` is `all-linear` or a list of module names."""

    r: Whole = 16
    lora_alpha: Positive = 32
    lora_dropout: Share = 0.0
    target_modules: Literal["all-linear"] | list[str] = "all-linear"
    use_rslora: bool = False
    use_dora: bool = False
    modules_to_save: list[str] = Field(default_factory=list[str])
    bias: Literal["none"] = "none"


_LORA = LoraSpec()


class TrainSpec(Strict):
    """Optimisation in the words of `transformers.TrainingArguments`, and what `auto` leaves to the
    planner.

    Attributes:
        global_batch_size: sequences per optimizer step over all GPUs; of objectives of pairs
            (`dpo`, `orpo`, `simpo`) pairs, two sequences each.
        learning_rate: the highest; by default 2e-5 for full fine-tuning, 2e-4 for adapters, of
            preferences 1e-6, 1e-5.
        adam_beta1, adam_beta2, adam_epsilon: AdamW's constants.
        save_steps: checkpoint every so many steps; 0: none on the way. The last step of adapters is
            saved in any case, and that at which a run is stopped.
        save_total_limit: verified checkpoints to keep; null keeps all.
        eval_steps: evaluate every so many steps, and at the end; 0 at the end only, where there is
            evaluation data.
        logging_steps: steps between plain progress lines; metrics.jsonl has every step.
        full_determinism: deterministic kernels, slower.
        disable_dropout: the model's own dropout is switched off, whatever its configuration says;
            of preferences by default, unless `lora_dropout` is set.
        quantize_experts: with method qlora, experts that a block keeps in one tensor are in 4 bits
            too; `auto`: they are, but in a run that began before this key was there.
        mlp: `chunked` computes the MLP of some positions at a time where blocks are computed again;
            `auto`: of rows of which a GPU has 16,384 tokens or more.
        save_dtype: type of the weights in `final/`; `auto` is the source's, of adapters the one
            they are trained in.
    """

    global_batch_size: Annotated[int, Field(ge=1, le=10**9)] = 8
    num_train_epochs: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1.0
    max_steps: Whole | None = None
    learning_rate: Positive = USUAL_RATES["lora"]
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
    disable_dropout: bool = False
    precision: Precision | Auto = "auto"
    optimizer: OptimizerName | Auto = "auto"
    micro_batch_size: Whole | Auto = "auto"
    gradient_checkpointing: Checkpointing | Auto = "auto"
    offload: Offload | Auto = "auto"
    loss: LossKind | Auto = "auto"
    mlp: LossKind | Auto = "auto"
    attn_implementation: Attention | Auto = "auto"
    compile: bool | Auto = "auto"
    quantize_experts: bool | Auto = "auto"
    save_dtype: SaveType | Auto = "auto"

    @property
    def optimizer_rule(self) -> OptimizerRule:
        """What is known of its optimizer."""
        return OPTIMIZER_RULES["adamw" if self.optimizer == "auto" else self.optimizer]

    def num_steps(self, steps_per_epoch: int) -> int:
        """Optimizer steps in all."""
        # Rounded first, so that three tenths of ten steps are three and not four.
        return self.max_steps or max(1, math.ceil(round(self.num_train_epochs * steps_per_epoch, 6)))

    def warmup(self, steps: int) -> tuple[int, float]:
        """Of so many steps, those that rise, and the share of `learning_rate` that is reached."""
        rising = self.warmup_steps or math.ceil(self.warmup_ratio * steps)
        return rising, 1.0 if rising < steps else (steps - 1) / rising

    def warning_of_warmup(self, steps: int) -> str | None:
        """What to say where all of so many steps are warm-up."""
        share = self.warmup(steps)[1]
        if not share:
            return "the learning rate is 0 in every step, all of which are warm-up: nothing will be trained"
        rises = f"all {steps:,} steps are warm-up: the learning rate rises to {100 * share:.2g} % of learning_rate"
        return rises if share < 1 else None

    @model_validator(mode="after")
    def _what_is_set_has_an_effect(self) -> Self:
        if self.warmup_ratio and self.warmup_steps:
            raise ValueError("warmup_ratio and warmup_steps exclude each other; keep one")
        for name in ("momentum", "adam_beta1", "adam_beta2", "adam_epsilon"):
            if getattr(self, name) != type(self).model_fields[name].default and name not in self.optimizer_rule.keys:
                way = "write optimizer: sgd" if name == "momentum" else "remove it"
                raise ValueError(f"{name} is set, which optimizer {self.optimizer} does not have; {way}")
        return self


class LayoutSpec(Strict):
    """A product of axes; what is left out is 1, or as in `spec.layout.axes.Layout`. ZeRO stages 1
    and 2 keep gathered weights whatever else is stated."""

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
    shard_over_cp: bool = True

    @model_validator(mode="after")
    def _degrees_agree(self) -> Self:
        layout = self.to_layout()
        if layout.shard_degree == 1 and (self.zero_stage != 3 or not self.reshard_after_forward):
            raise ValueError("zero_stage and reshard_after_forward have no effect without dp_shard; remove them")
        if self.cp == 1 and not self.shard_over_cp:
            raise ValueError("shard_over_cp has no effect without cp; remove it")
        if self.pp == 1 and self.schedule != "1f1b":
            raise ValueError(f"schedule {self.schedule} has no effect without pp; remove it")
        return self

    def to_layout(self) -> Layout:
        """The layout that planner and trainer use."""
        degrees: dict[str, Any] = self.model_dump()
        degrees["reshard_after_forward"] = self.reshard_after_forward and self.zero_stage == 3
        return Layout(**degrees)


def _as_alternatives(value: Any) -> Any:
    """A list of alternatives, also one written as a flag's text, becomes text with commas."""
    if isinstance(value, str) and value.strip().startswith("[") and value.strip().endswith("]"):
        return value.strip()[1:-1].strip()
    if not isinstance(value, list):
        return value
    items = cast(list[Any], value)
    return ", ".join(items) if items and all(isinstance(item, str) for item in items) else items


def _as_layout(value: Any) -> Any:
    """`fsdp x tp` is the one of its degrees that the planner chooses; `single` is one process."""
    if value == "single":
        return LayoutSpec()
    return [value] if _kind_of_way(value) == "Product" else value


def _kind_of_way(value: Any) -> str:
    return "Product" if isinstance(value, str) and " x " in value else "Way"


#: A strategy in a list: a way, or a product of ways.
_Way = Annotated[
    Annotated[Strategy, Tag("Way")] | Annotated[str, AfterValidator(as_product), Tag("Product")],
    Discriminator(_kind_of_way),
]


def _kind_of_layout(value: Any) -> str:
    return "List" if isinstance(value, list) else "Keys" if isinstance(value, dict | LayoutSpec) else "Name"


class RentSpec(Strict):
    """What renting a machine adds to a run, counted where `hardware: any` leaves it open what is
    rented. Usual values are nominal, not measured.

    Attributes:
        boot_minutes: until a machine with an image of the trainer runs; 0 where yours does.
        download_mb_per_second: of the model's files.
        disk_mb_per_second: of reading and writing weights.
        minimum_minutes: the least time that is charged; providers differ, from a second to an hour.
    """

    boot_minutes: NotNegative = 5.0
    download_mb_per_second: Positive = 250.0
    disk_mb_per_second: Positive = 1000.0
    minimum_minutes: NotNegative = 0.0

    @property
    def sentence(self) -> str:
        """What is in runs and costs."""
        least = f"at least {self.minimum_minutes:g} min are charged" if self.minimum_minutes else "no least charge"
        return (
            f"runs and costs include starting: {self.boot_minutes:g} min to boot, the weights at "
            f"{self.download_mb_per_second:g} MB/s, loading, compiling and saving; {least} "
            "(keys of `rent` in the job); where your machine is up and has the model, take these off"
        )


class Job(Strict):
    """What the user asks; every `auto` is still open.

    Attributes:
        model: hub id, folder, config.json or catalogue name.
        rope_scaling: how rotary positions are stretched for rows longer than the model's, in place
            of what its config.json says; keys below.
        objective: what is learnt: text as it stands (`sft`), or preferences between answers.
        hardware: `[NODES x] GPUS x NAME`, `cpu:N`, or `probed`, this machine with measured rates;
            left out: this machine. For `plan` also a list of those, or `any`.
        layout: `auto`, a strategy as plans print it (`fsdp x tp`), several to choose among, or a
            product of axes.
    """

    model: Place
    rope_scaling: Rope | None = None
    data: DataSpec = DataSpec()
    method: Method = "full"
    lora: LoraSpec | None = None
    objective: Objective = "sft"
    preference: PreferenceSpec | None = None
    train: TrainSpec = TrainSpec()
    hardware: Annotated[str | None, BeforeValidator(_as_alternatives)] = None
    goal: Goal = "fastest"
    rent: RentSpec = RentSpec()
    layout: Annotated[
        Annotated[Auto | Strategy, Tag("Name")]
        | Annotated[LayoutSpec, Tag("Keys")]
        | Annotated[list[_Way], Field(min_length=1), Tag("List")],
        Discriminator(_kind_of_layout),
        BeforeValidator(_as_layout),
    ] = "auto"
    output_dir: Place = "runs/first"

    @model_validator(mode="after")
    def _usual_rate(self) -> Self:
        usual: dict[str, Any] = {"learning_rate": USUAL_RATES[self.method]}
        if self.objective != "sft":
            keeps_dropout = self.lora is not None and self.lora.lora_dropout > 0
            usual = {"learning_rate": PREFERENCE_RATES[self.method], "disable_dropout": not keeps_dropout}
            preference = (self.preference or PreferenceSpec()).of(self.objective)
            object.__setattr__(self, "preference", preference)
        usual = {name: value for name, value in usual.items() if name not in self.train.model_fields_set}
        if usual:
            object.__setattr__(self, "train", self.train.model_copy(update=usual))
        return self

    @property
    def sides(self) -> int:
        """Sequences of one sample: a pair has two."""
        return 2 if self.objective in ("dpo", "orpo", "simpo") else 1

    @property
    def samples(self) -> str:
        """What a global batch is counted in."""
        return "pairs" if self.sides == 2 else "sequences"

    @property
    def compares_with_itself(self) -> bool:
        """Whether each step has a forward with adapters off, the reference of what it trains."""
        preference = self.preference
        refers = self.objective in WITH_REFERENCE and preference is not None and preference.reference == "auto"
        return refers and self.method != "full"

    @property
    def stated_layout(self) -> Layout | str | None:
        """The one layout to take, by its degrees or name; None where there are several."""
        if isinstance(self.layout, LayoutSpec):
            return self.layout.to_layout()
        return None if self.layout == "auto" or isinstance(self.layout, list) else self.layout

    def layout_on(self, cluster: Cluster) -> Layout | None:
        """The stated layout on a cluster. Raises ValueError: its GPUs do not divide into it."""
        stated, node = self.stated_layout, cluster.node.num_gpus
        if isinstance(stated, str):
            return Layout.from_strategy(stated, world_size=cluster.num_gpus, gpus_per_node=node)
        return stated

    @model_validator(mode="after")
    def _keys_agree(self) -> Self:
        if self.lora is not None and self.method == "full":
            raise ValueError("lora: is set but method is full; write method: lora (or qlora), or remove lora:")
        if self.preference is not None and self.objective == "sft":
            raise ValueError("preference: is set but objective is sft; write objective: dpo, or remove preference:")
        if self.preference is not None and (problem := self.preference.problem(self.objective)) is not None:
            raise ValueError(f"preference: {problem}")
        if self.objective != "sft" and self.data.train_on != "auto":
            raise ValueError(
                f"data: train_on is {self.data.train_on}, and objective {self.objective} compares all that stands "
                "behind the prompt; remove it"
            )
        if self.train.quantize_experts is True and self.method != "qlora":
            raise ValueError(
                f"train: quantize_experts is true but method is {self.method}; write method: qlora, or remove it"
            )
        if self.train.disable_dropout and self.lora is not None and self.lora.lora_dropout:
            raise ValueError("lora: lora_dropout is set, which train.disable_dropout switches off; keep one of them")
        stated = self.layout if isinstance(self.layout, LayoutSpec) else LayoutSpec()
        units = ("min_num_params", "prefetch")
        asked = [name for name in units if getattr(stated, name) != getattr(LayoutSpec(), name)]
        if asked and stated.to_layout().weight_shards == 1 and self.train.offload not in ("parameters", "all"):
            raise ValueError(
                f"layout: {asked[0]} has no effect where weights are whole on every GPU; write dp_shard above 1 with "
                "zero_stage 2 or 3, or remove it"
            )
        may = self.data.eval_path or self.data.eval_fraction or (not self.data.path and self.data.num_rows)
        if self.train.eval_steps and not may:
            raise ValueError(
                "train: eval_steps is set but there is nothing to evaluate on; add data.eval_fraction or data.eval_path"
            )
        return self

    @property
    def adapters(self) -> LoraSpec | None:
        """The LoRA settings in force, or None for full fine-tuning."""
        return None if self.method == "full" else self.lora or _LORA

    @property
    def quantises_experts(self) -> bool:
        """Whether stacked experts are in 4 bits."""
        return self.method == "qlora" and self.train.quantize_experts is not False

    def to_json(self) -> dict[str, Any]:
        """Plain data with all defaults; of preferences and renting nothing where there is none."""
        plain = self.model_dump(mode="json")
        if self.objective == "sft":
            del plain["objective"], plain["preference"]
        plain.pop("rope_scaling")
        if self.rent == RentSpec():
            del plain["rent"]
        return plain if self.rope_scaling is None else {**plain, "rope_scaling": self.rope_scaling.stated}
