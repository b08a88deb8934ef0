"""Configurations as torchtitan's ConfigManager reads them; degrees and batches multiply out."""

import os
import sys

from given import cases
from torchtitan.config import ConfigManager

for folder, job, steps in cases():
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.modules.pop("shardwise_titan", None)
    config = ConfigManager().parse_args(["--module", "shardwise_titan", "--config", "finetune"])
    sys.path.pop(0)
    degrees, training = config.parallelism, config.training
    data = degrees.data_parallel_replicate_degree * degrees.data_parallel_shard_degree
    # train.py of torchtitan: the global batch is a multiple of what all ranks take in one forward.
    assert training.global_batch_size == job["train"]["global_batch_size"]
    assert training.global_batch_size % (training.local_batch_size * data) == 0
    assert training.seq_len == job["data"]["max_length"]
    assert training.steps == steps
    sizes = [degrees.tensor_parallel_degree, degrees.pipeline_parallel_degree, degrees.context_parallel_degree]
    print(f"{folder.name}: {config.model_spec.flavor}, data {data}, tp, pp and cp {sizes}, {training.steps} steps")
