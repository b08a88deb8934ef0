"""SkyPilot: the task that trains a plan on rented machines"""

from __future__ import annotations

from shardwise.errors import UnsupportedError
from shardwise.interop.chosen import Chosen, Exported, as_yaml
from shardwise.interop.kubernetes import VOLUME
from shardwise.interop.torchrun import said_of

#: The catalogue's name of a GPU -> SkyPilot's.
ACCELERATORS = {
    **{name: name for name in ("T4", "L4", "L40", "L40S", "A10", "A10G", "A30", "A40", "H200")},
    "A100-40GB": "A100",
    "A100-PCIe-40GB": "A100",
    "A100-80GB": "A100-80GB",
    "A100-PCIe-80GB": "A100-80GB",
    "H100-SXM": "H100",
    "H100-PCIe": "H100",
    "V100-16GB": "V100",
    "V100-PCIe-16GB": "V100",
    "V100-32GB": "V100-32GB",
    "RTX-6000-Ada": "RTX6000-Ada",
    "RTX-A6000": "A6000",
    "RTX-A5000": "A5000",
    "RTX-A4000": "A4000",
}


def to_skypilot(chosen: Chosen) -> Exported:
    """A task of as many virtual machines as there are nodes."""
    gpu = chosen.cluster.gpu.name
    if chosen.on_cpu or gpu not in ACCELERATORS:
        known = ", ".join(sorted(set(ACCELERATORS)))
        raise UnsupportedError(f"{chosen.path}: SkyPilot has no name for {gpu} that is known here; it has {known}")
    line = chosen.torchrun(
        f"-m shardwise {chosen.train}",
        rank="$SKYPILOT_NODE_RANK",
        address='"$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"',
    )
    cache = {"SHARDWISE_CACHE": f"{VOLUME}/.shardwise-cache"}
    shared = {"volumes": {VOLUME: "shared"}, "envs": cache} if chosen.nodes > 1 else {}
    data = {
        "name": chosen.name,
        "num_nodes": chosen.nodes,
        "resources": {"accelerators": f"{ACCELERATORS[gpu]}:{chosen.processes}"},
        "workdir": ".",
        **shared,
        "setup": "pip install './shardwise[train]'\n",
        "run": f"{line}\n",
    }
    said = [
        "SkyPilot copies this folder to the machines: the job, the model and the rows are named relative to it",
        "setup installs Shardwise from a copy of its repository, which lies in the folder `shardwise` here",
    ]
    if shared:
        said.append(
            f"the volume `shared` is one that all nodes write (`sky volumes apply`), and output_dir lies under {VOLUME}"
        )
    return Exported(
        files={"task.yaml": as_yaml(data, comment=[chosen.written])},
        said=[*said, *said_of(chosen)[chosen.nodes > 1 :]],
        run=[f"sky launch -c {chosen.name} task.yaml"],
    )
