"""TRL: a script of a plan, for SFT or DPO, and the Accelerate configuration that shards it"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardwise.interop.accelerate import config, launch_lines
from shardwise.interop.chosen import Chosen, Exported, as_yaml, script
from shardwise.interop.limits import LOADERS, lora_config, memory_notes, said_of_rows, sft_settings, source_refusals
from shardwise.spec.job.preference import PreferenceSpec


def to_trl(chosen: Chosen) -> Exported:
    """sft.py or dpo.py, and accelerate.yaml where weights are sharded."""
    name = f"{chosen.job.objective}.py"
    made, run = {name: _script(chosen)}, chosen.torchrun_lines(name)
    if chosen.execution.gathers_weights:
        made["accelerate.yaml"] = as_yaml(config(chosen), comment=[chosen.written])
        run = launch_lines(chosen, name)
    return Exported(files=made, said=[*memory_notes(chosen, chunks=True), *_said(chosen)], run=run)


def _script(chosen: Chosen) -> str:
    data, adapters = chosen.job.data, chosen.job.adapters is not None
    source, written = data.path[0], data.chat_template
    load = f"{source.path!r}, {source.name!r}, split={source.split!r}"
    if loader := LOADERS.get(Path(source.path).suffix.lower()):
        load = f'{loader!r}, data_files={source.path!r}, split="train"'
    load = f"load_dataset({load})"
    settings = _settings(chosen) | (_dpo_settings(chosen) if chosen.job.objective == "dpo" else {})
    return script(f"{chosen.job.objective}.py.txt").substitute(
        written=chosen.written,
        path=chosen.path,
        peft_import="from peft import LoraConfig\n" if adapters else "",
        peft=f"\n        peft_config={lora_config(chosen)}," if adapters else "",
        model=repr(chosen.model),
        load=load,
        columns=repr({theirs: ours for ours, theirs in data.columns.items()}),
        template=f"Path({written!r}).read_text()" if written else "None",
        only=repr(data.train_on != "all"),
        settings="\n".join(f"        {name}={value!r}," for name, value in settings.items()),
    )


def _settings(chosen: Chosen) -> dict[str, Any]:
    """Arguments of SFTConfig and DPOConfig, without those that depend on the rows."""
    execution, data = chosen.execution, chosen.job.data
    whole = not execution.gathers_weights
    frozen_in_bf16 = bool(chosen.job.adapters) and execution.precision == "mixed" and whole
    stored = "bfloat16" if execution.precision == "bf16" or frozen_in_bf16 else "float32"
    return {
        **sft_settings(chosen),
        "model_init_kwargs": {"dtype": stored, "attn_implementation": execution.attention_elsewhere},
        "max_length": data.max_length,
        **({"average_tokens_across_devices": True} if chosen.job.objective == "sft" else {}),  # pairs count no tokens
        "train_sampling_strategy": "random" if data.shuffle else "sequential",
        "bf16": execution.precision == "mixed",
        "fp16": execution.precision == "fp16",
        "gradient_checkpointing": whole and execution.gradient_checkpointing == "full",  # else accelerate.yaml has it
        "ddp_find_unused_parameters": False,
        "use_cpu": chosen.on_cpu,
    }


def refusals(chosen: Chosen) -> Iterator[str]:
    """What else the trainer would do otherwise."""
    job = chosen.job
    yield from source_refusals(chosen, "trl")
    place = Path(job.data.path[0].path if job.data.path else "rows.jsonl")
    if place.is_dir() or place.suffix.lower() in (".txt", ".gz", ".xlsx", ".tsv"):
        yield f"data.path names {place}, which is not exported to trl; name a file ({', '.join(LOADERS)}) or a hub id"
    if job.train.momentum:
        yield "train.momentum is not exported to trl, whose sgd has none; leave it out"
    if job.objective == "dpo":
        yield from _dpo_refusals(chosen)


def _dpo_refusals(chosen: Chosen) -> Iterator[str]:
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


def _dpo_settings(chosen: Chosen) -> dict[str, Any]:
    spec, full = chosen.job.preference or PreferenceSpec(), chosen.job.adapters is None
    return {
        "beta": spec.beta,
        "loss_type": list(spec.loss_type),
        **({} if spec.loss_weights is None else {"loss_weights": list(spec.loss_weights)}),
        "label_smoothing": spec.label_smoothing,
        "precompute_ref_log_probs": full or spec.reference == "precomputed",
        "disable_dropout": chosen.job.train.disable_dropout,
    }


def _said(chosen: Chosen) -> Iterator[str]:
    yield from said_of_rows(chosen, cuts=True)
    if chosen.execution.compile and not chosen.execution.gathers_weights:
        yield "the plan compiles each block, and the script none: steps take longer than forecast"
