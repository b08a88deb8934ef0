"""Configurations as axolotl's schema reads them, and no keys that it would pass over."""

from axolotl.utils.schemas.config import AxolotlInputConfig
from axolotl.utils.schemas.datasets import SFTDataset
from axolotl.utils.schemas.fsdp import FSDPConfig
from given import cases, read_yaml

for folder, job, steps in cases():
    made = read_yaml(folder / "axolotl.yaml")
    unknown = {
        *(made.keys() - AxolotlInputConfig.model_fields.keys()),
        *(made["datasets"][0].keys() - SFTDataset.model_fields.keys()),
        *(made.get("fsdp_config", {}).keys() - FSDPConfig.model_fields.keys()),
    }
    assert not unknown, unknown
    read = AxolotlInputConfig(**made)
    assert read.max_steps == steps
    assert job.get("layout") != "fsdp" or read.fsdp_config is not None
    assert (read.fsdp_config is None) == (read.dp_shard_size is None) and read.bf16 is True
    print(f"{folder.name}: {read.micro_batch_size} rows, {read.max_steps} steps, dp_shard_size {read.dp_shard_size}")
