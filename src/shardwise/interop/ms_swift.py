"""ms-swift: its YAML file, which names one of its own DeepSpeed configurations where it shards"""

from collections.abc import Iterator
from typing import Any

from shardwise.interop import llama_factory
from shardwise.interop.chosen import Chosen, Exported, as_yaml
from shardwise.interop.limits import memory_notes, said_of_rows, sft_settings, source_refusals, zero_of


def to_ms_swift(chosen: Chosen) -> Exported:
    """ms_swift.yaml, and the line that trains it."""
    text = as_yaml(config(chosen), comment=[chosen.written])
    said = ["ms-swift reads models and rows of its own hub unless use_hf is true, which it is here"]
    said += ["written for ms-swift 4.6.0, with DeepSpeed installed beside it where weights are sharded"]
    said += [*said_of_rows(chosen, cuts=False), *memory_notes(chosen)]
    run = [line.removeprefix("FORCE_TORCHRUN=1 ") for line in llama_factory.launched(chosen, "swift sft ms_swift.yaml")]
    return Exported(files={"ms_swift.yaml": text}, said=said, run=run)


def config(chosen: Chosen) -> dict[str, Any]:
    """ms-swift's keys. `torch_dtype` is that of trained weights; of frozen ones bfloat16."""
    execution, data, lora = chosen.execution, chosen.job.data, chosen.job.adapters
    adapters: dict[str, Any] = {}
    if lora is not None:
        targets = ["all-linear"] if lora.target_modules == "all-linear" else list(lora.target_modules)
        adapters = {"lora_rank": lora.r, "lora_alpha": lora.lora_alpha, "lora_dropout": lora.lora_dropout}
        adapters |= {"target_modules": targets, "use_rslora": lora.use_rslora, "use_dora": lora.use_dora}
        adapters |= {"modules_to_save": list(lora.modules_to_save)}
    zero = zero_of(chosen)
    in_float32 = execution.precision == "mixed" and lora is None and zero is None
    offload = "_offload" * ("offload_optimizer" in (zero or {}))
    sharding = {} if zero is None else {"deepspeed": f"zero{zero['stage']}{offload}"}
    return {
        "model": chosen.model,
        "use_hf": True,
        "tuner_type": chosen.job.method,
        **adapters,
        "dataset": [":".join(filter(None, (data.path[0].path, data.path[0].name)))],
        "max_length": data.max_length,
        "truncation_strategy": "right" if data.over_long == "truncate" else "delete",
        "loss_scale": "all" if data.train_on == "all" else "default",
        "dataset_shuffle": data.shuffle,
        "train_dataloader_shuffle": data.shuffle,
        **sft_settings(chosen),
        "torch_dtype": "float32" if in_float32 else "bfloat16",
        "bf16": True,
        "attn_impl": execution.attention_elsewhere,
        "gradient_checkpointing": execution.gradient_checkpointing == "full",
        **sharding,
    }


def refusals(chosen: Chosen) -> Iterator[str]:
    """What else the trainer would do otherwise."""
    yield from source_refusals(chosen, "ms-swift")
    if any(source.split != "train" for source in chosen.job.data.path):
        yield "data.path with a split is not exported to ms-swift, whose files name none; name a file"
    if chosen.execution.precision == "bf16" and zero_of(chosen) is not None:
        yield "ms-swift keeps float32 masters under DeepSpeed; plan again with --set train.precision=mixed"
    if chosen.layout.strategy == "zero1" and chosen.execution.offload != "none":
        yield "ms-swift offloads under zero2 and fsdp; plan again with --set layout=zero2"
