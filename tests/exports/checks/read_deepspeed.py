"""Configurations as DeepSpeed's own classes read them, which refuse keys that they do not know."""

import json

from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from given import cases

STAGES = {"fsdp": 3, "zero2": 2, "zero1": 1}

for folder, job, _ in cases():
    stated = json.loads((folder / "deepspeed.json").read_text())
    assert stated["zero_optimization"].keys() <= {
        name for key, field in DeepSpeedZeroConfig.model_fields.items() for name in (key, field.alias)
    }
    # It divides the batch over one process; here the plan has several.
    alone = stated["train_micro_batch_size_per_gpu"] * stated["gradient_accumulation_steps"]
    read = DeepSpeedConfig({**stated, "train_batch_size": alone})
    zero = read.zero_config
    assert zero.stage == STAGES.get(job.get("layout"), int("offload" in job["train"]))
    assert zero.reduce_bucket_size == 25_000_000 or zero.stage == 0
    assert (zero.offload_optimizer is not None) == ("offload" in job["train"])
    assert zero.max_reuse_distance == 0 or zero.stage < 3
    assert read.torch_autocast_enabled and read.optimizer_name == "adamw"
    print(f"{folder.name}: stage {zero.stage}, {read.train_micro_batch_size_per_gpu} rows a process")
