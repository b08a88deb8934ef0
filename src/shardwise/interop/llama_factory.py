"""LLaMA-Factory: its YAML file, its table of data, DeepSpeed's file where it shards"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardwise.interop.chosen import Chosen, Exported, as_yaml
from shardwise.interop.limits import LOADERS, memory_notes, said_of_rows, sft_settings, source_refusals, zero_of


def to_llama_factory(chosen: Chosen) -> Exported:
    """llama_factory.yaml, dataset_info.json, and deepspeed.json where states are sharded."""
    source = chosen.job.data.path[0]
    where = {"file_name": _from_anywhere(source.path)}
    if Path(source.path).suffix.lower() not in LOADERS and not Path(source.path).exists():
        where = {"hf_hub_url": source.path, "split": source.split, **({"subset": source.name} if source.name else {})}
    chat = {"formatting": "sharegpt", "columns": {"messages": "messages"}}
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    table = {"rows": {**where, **chat, "tags": {**tags, "system_tag": "system"}}}
    files = {
        "llama_factory.yaml": as_yaml(config(chosen), comment=[chosen.written]),
        "dataset_info.json": json.dumps(table, indent=2) + "\n",
    }
    if zero_of(chosen) is not None:
        files["deepspeed.json"] = json.dumps(deepspeed_config(chosen), indent=2) + "\n"
    said = [
        "rows are read as chats (`messages`); LLaMA-Factory's data/README says what dataset_info.json has for others",
        "the command is run where the files lie, and output_dir is seen from there; written for llamafactory 0.9.5",
        *said_of_rows(chosen, cuts=True),
        *memory_notes(chosen),
    ]
    run = launched(chosen, "llamafactory-cli train llama_factory.yaml")
    return Exported(files=files, said=said, run=run, is_run_inside=True)


def _from_anywhere(path: str) -> str:
    return str(Path(path).absolute()) if Path(path).exists() else path


def launched(chosen: Chosen, command: str) -> list[str]:
    """The line of each node, for programs that start torchrun from these variables."""
    group = f'NNODES={chosen.nodes} NODE_RANK={{}} MASTER_ADDR="$NODE_0" MASTER_PORT=29500 ' * (chosen.nodes > 1)
    line = f"NPROC_PER_NODE={chosen.processes} {command}"
    return chosen.on_each_node(lambda rank: f"FORCE_TORCHRUN=1 {group.format(rank)}{line}")


def config(chosen: Chosen) -> dict[str, Any]:
    """LLaMA-Factory's keys."""
    execution, data, lora = chosen.execution, chosen.job.data, chosen.job.adapters
    adapters: dict[str, Any] = {}
    if lora is not None:
        targets = "all" if lora.target_modules == "all-linear" else ",".join(lora.target_modules)
        adapters = {"lora_rank": lora.r, "lora_alpha": int(lora.lora_alpha), "lora_dropout": lora.lora_dropout}
        adapters |= {"lora_target": targets, "use_rslora": lora.use_rslora, "use_dora": lora.use_dora}
        adapters |= {"additional_target": ",".join(lora.modules_to_save)} if lora.modules_to_save else {}
    return {
        "model_name_or_path": _from_anywhere(chosen.model),
        "stage": "sft",
        "do_train": True,
        "finetuning_type": chosen.job.method,
        **adapters,
        "dataset": "rows",
        "dataset_dir": ".",
        "cutoff_len": data.max_length,
        "train_on_prompt": data.train_on == "all",
        "disable_shuffling": not data.shuffle,
        **sft_settings(chosen),
        "bf16": True,
        "pure_bf16": execution.precision == "bf16",
        "flash_attn": {"sdpa": "sdpa", "eager": "disabled"}.get(execution.attention_elsewhere, "fa2"),
        "disable_gradient_checkpointing": execution.gradient_checkpointing != "full",
        **({"deepspeed": "deepspeed.json"} if zero_of(chosen) is not None else {}),
    }


def deepspeed_config(chosen: Chosen) -> dict[str, Any]:
    """DeepSpeed's keys; `auto` is what Trainer fills in."""
    return {
        **dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_clipping"), "auto"),
        "gradient_accumulation_steps": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": zero_of(chosen),
    }


def refusals(chosen: Chosen) -> Iterator[str]:
    """What else the trainer would do otherwise."""
    yield from source_refusals(chosen, "llama-factory")
    if chosen.execution.precision == "bf16" and zero_of(chosen) is not None:
        yield "llama-factory has no pure bfloat16 under DeepSpeed; plan again with --set train.precision=mixed"
