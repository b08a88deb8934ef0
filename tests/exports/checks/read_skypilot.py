"""Tasks as SkyPilot reads them, with its names of GPUs."""

import sky
from given import cases
from sky.catalog import runpod_catalog  # noqa: F401  (the clouds are registered)
from sky.provision.runpod import utils as runpod
from sky.utils import gpu_names

#: Names in SkyPilot's own code; catalogues of its clouds are downloads, and not asked for.
KNOWN = {*gpu_names.CANONICAL_GPU_NAMES, *runpod.GPU_NAME_MAP, *sky.catalog.get_common_gpus(), "MI300X"}

for folder, *_ in cases():
    task = sky.Task.from_yaml(str(folder / "task.yaml"))
    asked = {name: count for one in task.resources for name, count in one.accelerators.items()}
    assert asked.keys() <= KNOWN, asked.keys() - KNOWN
    clouds = {str(one.cloud).lower() for one in task.resources if one.cloud is not None}
    if task.num_nodes > 1:
        assert clouds == {"kubernetes"} and task.volume_mounts is None
        assert {one.network_tier.value for one in task.resources} == {"best"}
    elif "SXM" in folder.name:
        # RunPod's H100 is the PCIe card.
        assert "runpod" not in clouds and any(one.cloud is None for one in task.resources)
    print(f"{folder.name}: {task.num_nodes} x {asked}, {', '.join(sorted(clouds)) or 'any cloud'}")
