"""TRL's DPOTrainer: a script with the DPOConfig of a plan"""

from collections.abc import Iterator
from typing import Any

from shardwise.interop.chosen import Chosen
from shardwise.spec.job.preference import PreferenceSpec

#: Settings of TrainingArguments that count tokens, which pairs have no use for.
_OF_TOKENS = ("average_tokens_across_devices",)


def dpo_refusals(chosen: Chosen) -> Iterator[str]:
    """What of a job's preferences the trainer would do otherwise."""
    spec, job = chosen.job.preference or PreferenceSpec(), chosen.job
    if spec.reference not in ("auto", "precomputed"):
        yield f"preference.reference: {spec.reference} is not exported to trl; write auto or precomputed"
    if not job.train.disable_dropout and job.adapters is None:
        yield "train.disable_dropout: false is not exported to trl; leave it out"
    if job.data.rendered is False:
        yield "data.rendered: false is not exported to trl, which takes text as it is; leave it out"
    if "sft" in spec.loss_type and chosen.execution.gradient_accumulation_steps * chosen.layout.data_world_size > 1:
        yield (
            "preference.loss_type: sft is not exported to trl for several micro-batches, each of which it divides by "
            "its own tokens; leave it out"
        )


def dpo_settings(chosen: Chosen, settings: dict[str, Any]) -> dict[str, Any]:
    """DPOConfig's arguments, of those of SFTConfig."""
    spec, full = chosen.job.preference or PreferenceSpec(), chosen.job.adapters is None
    return {
        **{key: value for key, value in settings.items() if key not in _OF_TOKENS},
        "beta": spec.beta,
        "loss_type": list(spec.loss_type),
        **({} if spec.loss_weights is None else {"loss_weights": list(spec.loss_weights)}),
        "label_smoothing": spec.label_smoothing,
        "precompute_ref_log_probs": full or spec.reference == "precomputed",
        "disable_dropout": chosen.job.train.disable_dropout,
    }
