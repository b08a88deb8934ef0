"""Arguments as LLaMA-Factory parses them, which refuses keys that it does not know."""

import json
import os
from pathlib import Path

from given import cases, read_yaml
from llamafactory.hparams import parser as arguments
from transformers import HfArgumentParser

for folder, job, steps in cases():
    os.chdir(folder)
    made = read_yaml(folder / "llama_factory.yaml")
    # DeepSpeed itself, and what asks for a GPU, are not there.
    zero = made.pop("deepspeed", None)
    made.pop("bf16")
    model, data, training, method, _ = HfArgumentParser(arguments._TRAIN_ARGS).parse_dict(made)
    (rows,) = json.loads(Path(data.dataset_dir, "dataset_info.json").read_text()).items()
    assert rows[0] == made["dataset"] and (Path(data.dataset_dir) / rows[1]["file_name"]).is_file()
    assert training.max_steps == steps
    assert method.finetuning_type == job.get("method", "full") and model.model_name_or_path
    stage = json.loads(Path(zero).read_text())["zero_optimization"]["stage"] if zero else 0
    assert stage == {"fsdp": 3, "zero1": 1}.get(job.get("layout"), 0)
    print(f"{folder.name}: {training.per_device_train_batch_size} rows, {training.max_steps} steps, ZeRO {stage}")
