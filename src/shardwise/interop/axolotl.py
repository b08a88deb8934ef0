"""Axolotl: its one YAML file"""

from collections.abc import Iterator
from typing import Any

from shardwise.interop.chosen import Chosen, Exported, as_yaml
from shardwise.interop.limits import OPTIMIZERS, memory_notes, said_of_rows, source_refusals


def to_axolotl(chosen: Chosen) -> Exported:
    """axolotl.yaml, and the line that trains it."""
    text = as_yaml(config(chosen), comment=[chosen.written])
    said = [
        "rows are read as chats (`messages`); for other kinds write the `type` that Axolotl has for them",
        "written for axolotl 0.19.0, whose schema passes over keys that it does not know",
        *said_of_rows(chosen, cuts=False),
        *memory_notes(chosen),
    ]
    run = chosen.torchrun_lines("-m axolotl.cli.train axolotl.yaml")
    return Exported(files={"axolotl.yaml": text}, said=said, run=run)


def config(chosen: Chosen) -> dict[str, Any]:
    """Axolotl's keys. `bf16` loads weights in bfloat16; FSDP2 then trains them in float32."""
    train, execution, data = chosen.job.train, chosen.execution, chosen.job.data
    sharded, source = execution.gathers_weights, data.path[0]
    rows = {"path": source.path, "ds_type": "json"} if source.path.endswith(".jsonl") else {"path": source.path}
    rows |= {"name": source.name} if source.name else {}
    key, kind = "warmup_ratio" if train.warmup_ratio else "warmup_steps", train.lr_scheduler_type
    warmup = {key: getattr(train, key)}
    return {
        "base_model": chosen.model,
        "datasets": [{**rows, "split": source.split or "train", "type": "chat_template"}],
        "output_dir": chosen.job.output_dir,
        "sequence_len": data.max_length,
        "excess_length_strategy": "raise" if data.over_long == "error" else data.over_long,
        "sample_packing": False,
        "curriculum_sampling": not data.shuffle,  # the rows as they stand
        "train_on_inputs": data.train_on == "all",
        "micro_batch_size": execution.micro_batch_size,
        "gradient_accumulation_steps": execution.gradient_accumulation_steps,
        **({"max_steps": chosen.steps} if chosen.steps else {"num_epochs": train.num_train_epochs}),
        "optimizer": OPTIMIZERS[execution.optimizer],
        "learning_rate": train.learning_rate,
        "lr_scheduler": "constant_with_warmup" if kind == "constant" and any(warmup.values()) else kind,
        **warmup,
        **{key: getattr(train, key) for key in ("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")},
        "max_grad_norm": train.max_grad_norm,
        "bf16": True,
        "attn_implementation": execution.attention_elsewhere,
        "gradient_checkpointing": execution.gradient_checkpointing == "full" and not sharded,
        "torch_compile": execution.compile,
        "logging_steps": train.logging_steps,
        "seed": train.seed,
        **({"save_steps": train.save_steps} if train.save_steps else {"save_strategy": "no"}),
        **_adapters(chosen),
        **(_sharding(chosen) if sharded else {}),
    }


def _adapters(chosen: Chosen) -> dict[str, Any]:
    lora = chosen.job.adapters
    if lora is None:
        return {}
    linear = lora.target_modules == "all-linear"
    targets = {"lora_target_linear": True} if linear else {"lora_target_modules": list(lora.target_modules)}
    words = {"adapter": "lora", "lora_r": lora.r, "lora_alpha": int(lora.lora_alpha), "lora_dropout": lora.lora_dropout}
    words |= {"lora_modules_to_save": list(lora.modules_to_save)} if lora.modules_to_save else {}
    return {**words, **targets, "peft_use_dora": lora.use_dora, "peft_use_rslora": lora.use_rslora}


def _sharding(chosen: Chosen) -> dict[str, Any]:
    layout, execution = chosen.layout, chosen.execution
    copies = {"dp_replicate_size": layout.dp_replicate} if layout.dp_replicate > 1 else {}
    fsdp = {
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": layout.reshard_after_forward,
        "offload_params": execution.parameters_on_host,
        "activation_checkpointing": execution.gradient_checkpointing == "full",
        "state_dict_type": "FULL_STATE_DICT",
    }
    return {"dp_shard_size": layout.dp_shard, **copies, "fsdp_version": 2, "fsdp_config": fsdp}


def refusals(chosen: Chosen) -> Iterator[str]:
    """What else the trainer would do otherwise."""
    yield from source_refusals(chosen, "axolotl")
    whole = not chosen.execution.gathers_weights
    if chosen.job.adapters is None and (chosen.execution.precision == "bf16") != whole:
        does, write = ("bfloat16", "bf16") if whole else ("float32, which FSDP2 makes of them", "mixed")
        yield (
            f"axolotl trains the weights of {chosen.layout.strategy} in {does}; plan again with --set "
            f"train.precision={write}"
        )
