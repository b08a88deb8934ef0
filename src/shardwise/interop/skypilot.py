"""SkyPilot: a task on rented machines, by the names that its catalogues have for GPUs"""

from typing import Any

from shardwise.catalog.prices import read_table
from shardwise.errors import UnsupportedError
from shardwise.interop.chosen import Chosen, Exported, as_yaml
from shardwise.interop.kubernetes import ON_VOLUME, VOLUME
from shardwise.interop.launchers import launcher_notes

#: The catalogue's name of a GPU -> SkyPilot's.
ACCELERATORS: dict[str, list[str]] = read_table("skypilot", package="shardwise.interop")


def to_skypilot(chosen: Chosen) -> Exported:
    """task.yaml, for as many virtual machines as there are nodes."""
    gpu = chosen.cluster.gpu.name
    if chosen.on_cpu or gpu not in ACCELERATORS:
        known = ", ".join(sorted(set(ACCELERATORS)))
        raise UnsupportedError(f"{chosen.path}: SkyPilot has no name for {gpu} that is known here; it has {known}")
    first = '"$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"'
    line = chosen.torchrun(f"-m shardwise {chosen.train}", rank="$SKYPILOT_NODE_RANK", address=first)
    data = {
        "name": chosen.name,
        "num_nodes": chosen.nodes,
        "resources": _resources(chosen, ACCELERATORS[gpu]),
        "workdir": ".",
        **({"volumes": {VOLUME: "shared"}, "envs": ON_VOLUME} if chosen.nodes > 1 else {}),
        "setup": "pip install './shardwise[train]'\n",
        "run": f"{line}\n",
    }
    text = as_yaml(data, comment=[chosen.written])
    run = [f"sky launch -c {chosen.name} task.yaml"]
    return Exported(files={"task.yaml": text}, said=_said(chosen), run=run)


def _resources(chosen: Chosen, names: list[str]) -> dict[str, Any]:
    """Machines that have the GPUs: several on Kubernetes, one anywhere."""
    count = chosen.processes
    if chosen.nodes > 1:
        plain = dict.fromkeys(name.partition("/")[2] or name for name in names)
        return {"infra": "kubernetes", "accelerators": dict.fromkeys(plain, count), "network_tier": "best"}
    anywhere = [name for name in names if "/" not in name]
    placed = [name.split("/") for name in names if "/" in name]
    if not placed:
        return {"accelerators": dict.fromkeys(anywhere, count)}
    one_of = [{"accelerators": {name: count}} for name in anywhere]
    one_of += [{"infra": cloud, "accelerators": {name: count}} for cloud, name in placed]
    return one_of[0] if len(one_of) == 1 else {"any_of": one_of}


def _said(chosen: Chosen) -> list[str]:
    said = [
        "SkyPilot copies this folder to the machines: the job, the model and the rows are named relative to it",
        "setup installs Shardwise from a copy of its repository, which lies in the folder `shardwise` here",
    ]
    if chosen.nodes > 1:
        said.append(
            "SkyPilot has volumes that several machines write on Kubernetes alone, hence `infra`: `shared` is one "
            f"(`sky volumes apply`), and output_dir lies under {VOLUME}; on a cloud take `infra` and `volumes` out, "
            f"and mount a file system of yours at {VOLUME} in setup"
        )
    if chosen.on_amd:
        said.append("setup installs PyTorch for CUDA; for ROCm name PyTorch's index of it first")
    return [*said, *launcher_notes(chosen, shared=False)]
