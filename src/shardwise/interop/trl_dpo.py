"""TRL's DPOTrainer: a script with the DPOConfig of a plan"""

from __future__ import annotations

from collections.abc import Iterator
from string import Template
from typing import Any

from shardwise.interop.chosen import Chosen
from shardwise.spec.job.preference import PreferenceSpec

#: Settings of TrainingArguments that count tokens, which pairs have no use for.
_OF_TOKENS = ("average_tokens_across_devices",)


def dpo_script(chosen: Chosen, *, settings: dict[str, Any], load: str, peft_import: str, peft: str) -> str:
    """dpo.py; the arguments as in sft.py."""
    job, written = chosen.job, chosen.job.data.chat_template
    own = {**{key: value for key, value in settings.items() if key not in _OF_TOKENS}, **_preference(chosen)}
    return Template(_SCRIPT).substitute(
        written=chosen.written,
        path=chosen.path,
        peft_import=peft_import,
        peft=peft,
        model=repr(chosen.model),
        load=load,
        columns=repr({theirs: ours for ours, theirs in job.data.columns.items()}),
        template=f"Path({written!r}).read_text()" if written else "None",
        settings="\n".join(f"        {name}={value!r}," for name, value in own.items()),
    )


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


def _preference(chosen: Chosen) -> dict[str, Any]:
    spec, full = chosen.job.preference or PreferenceSpec(), chosen.job.adapters is None
    return {
        "beta": spec.beta,
        "loss_type": list(spec.loss_type),
        **({} if spec.loss_weights is None else {"loss_weights": list(spec.loss_weights)}),
        "label_smoothing": spec.label_smoothing,
        "precompute_ref_log_probs": full or spec.reference == "precomputed",
        "disable_dropout": chosen.job.train.disable_dropout,
    }


_SCRIPT = '''"""$written, as $path was planned."""

from pathlib import Path

from datasets import load_dataset
${peft_import}from transformers import AutoTokenizer
from trl import DPOConfig, DPOTrainer

MODEL = $model


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    template = $template or tokenizer.chat_template
    tokenizer.chat_template = template
    rows = $load.rename_columns($columns)
    args = DPOConfig(
$settings
    )
    trainer = DPOTrainer(
        model=MODEL,
        args=args,
        train_dataset=rows,
        processing_class=tokenizer,$peft
    )
    trainer.train()
    trainer.save_model()
    trainer.save_state()


if __name__ == "__main__":
    main()
'''
