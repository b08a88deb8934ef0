"""What a job learns: text (`sft`) or preferences, in the words and by the defaults of TRL 1.16"""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from shardwise.spec.job.strict import AT_HOME, NotNegative, Positive, Strict, Text

Objective = Literal["sft", "dpo", "orpo", "kto", "simpo"]

#: Of pairs, then of single rows.
LossType = (
    Literal["sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard"]
    | Literal["apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"]
    | Literal["kto", "apo_zero_unpaired"]
)
_OF_ROWS = ("kto", "apo_zero_unpaired")
#: What `label_smoothing` is read by.
_SMOOTHED = ("exo_pair", "robust")

#: Objectives that compare what is trained with a reference.
WITH_REFERENCE = ("dpo", "kto")


class PreferenceSpec(Strict):
    """Learning from preferences.

    Attributes:
        beta: how near the reference what is trained stays; of `orpo` the weight of the odds ratio.
        loss_type: of `dpo`, one or several, which are added up; of `kto`, `kto` or
            `apo_zero_unpaired`.
        loss_weights: of several losses; by default each has weight 1.
        label_smoothing: of `robust`, `exo_pair` and `simpo`: the share of labels taken to be wrong.
        reference: `auto`: the same model with adapters off, in full training as `precomputed`,
            which has its log-probabilities computed before the first step; `none`: no reference; or
            a model (a folder or hub id).
        simpo_gamma: the margin of `simpo`.
        desirable_weight, undesirable_weight: of the rows of `kto`, by their labels.
    """

    beta: Positive = 0.1
    loss_type: Annotated[
        list[LossType], BeforeValidator(lambda v: [v] if isinstance(v, str) else v), Field(min_length=1)
    ] = Field(default_factory=lambda: list[LossType](["sigmoid"]))
    loss_weights: list[float] | None = None
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5, allow_inf_nan=False)] = 0.0
    reference: Annotated[Literal["auto", "none", "precomputed"] | Text, AT_HOME] = "auto"
    simpo_gamma: NotNegative = 0.5
    desirable_weight: Positive = 1.0
    undesirable_weight: Positive = 1.0

    @model_validator(mode="after")
    def _losses_agree(self) -> Self:
        if self.loss_weights is not None and len(self.loss_weights) != len(self.loss_type):
            raise ValueError(
                f"loss_weights has {len(self.loss_weights)} numbers for {len(self.loss_type)} losses in loss_type; "
                "write one for each"
            )
        if "exo_pair" in self.loss_type and not self.label_smoothing:
            raise ValueError("loss_type exo_pair needs label_smoothing above 0; its paper takes 0.001")
        return self

    def of(self, objective: Objective) -> Self:
        """With the loss that an objective has where none is stated."""
        if objective == "kto" and self.loss_type == ["sigmoid"]:
            return self.model_copy(update={"loss_type": ["kto"]})
        return self

    def problem(self, objective: Objective) -> str | None:
        """What is set that an objective does not read, as a sentence, or None."""
        defaults = PreferenceSpec().of(objective)
        stated = [name for name in type(self).model_fields if getattr(self, name) != getattr(defaults, name)]
        smoothed = objective == "simpo" or any(kind in _SMOOTHED for kind in self.loss_type)
        read = {
            "loss_type": objective in ("dpo", "kto"),
            "loss_weights": objective == "dpo",
            "label_smoothing": smoothed,
            "reference": objective in WITH_REFERENCE,
            "simpo_gamma": objective == "simpo",
            "desirable_weight": objective == "kto",
            "undesirable_weight": objective == "kto",
        }
        unread = next((name for name in stated if not read.get(name, True)), None)
        if unread == "label_smoothing" and objective == "dpo":
            return "label_smoothing is set, which the losses robust and exo_pair read alone; remove it"
        if unread is not None:
            return f"{unread} is set, which objective {objective} does not read; remove it"
        of_rows = [kind for kind in self.loss_type if kind in _OF_ROWS]
        if objective == "dpo" and of_rows:
            return f"loss_type {of_rows[0]} is of single rows with a label; write objective: kto"
        if objective == "kto" and (len(self.loss_type) > 1 or not of_rows):
            return f"loss_type {', '.join(self.loss_type)} is of pairs; objective kto has kto or apo_zero_unpaired"
        if objective == "kto" and self.reference == "none":
            return "reference is none, and objective kto compares with a reference; write auto"
        return None
