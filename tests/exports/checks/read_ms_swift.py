"""Arguments as ms-swift's command line parses them, which refuses those that it does not know."""

import os

from given import cases
from swift.arguments import SftArguments
from swift.cli.main import parse_yaml_args
from transformers import HfArgumentParser

for folder, job, steps in cases():
    os.chdir(folder)
    line = ["ms_swift.yaml"]
    parse_yaml_args(line)
    # A model is read when arguments are made; here they are parsed alone.
    parser = HfArgumentParser([SftArguments])
    read, unknown = parser.parse_known_args(line)
    assert not unknown, unknown
    assert read.max_steps == steps
    assert read.tuner_type == job.get("method", "full")
    assert read.deepspeed == {"fsdp": "zero3", "zero1": "zero1"}.get(job.get("layout"))
    print(f"{folder.name}: {read.per_device_train_batch_size} rows, {read.max_steps} steps, {read.deepspeed}")
