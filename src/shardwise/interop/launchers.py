"""Targets that start Shardwise: torchrun, Slurm, a Kubernetes JobSet, and a SkyPilot task on rented machines"""

from __future__ import annotations

import math
from typing import Any

from shardwise.errors import UnsupportedError
from shardwise.interop.chosen import Chosen, Exported, as_yaml

#: What a group of nodes shares, beside the commands.
SHARED = (
    "all nodes see one file system at this path: output_dir, the model, the rows and SHARDWISE_CACHE lie on it, and "
    "the commands are run there"
)
PLANNED_AGAIN = "the job file is planned again when it starts; export a plan.json to hold the run to this plan"

#: Where pods and virtual machines see the shared file system, and the cache on it.
VOLUME, CACHE = "/shared", "/shared/.shardwise-cache"

#: How long a pod has between SIGTERM and SIGKILL, to save.
GRACE_SECONDS = 120

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


def _said_of(chosen: Chosen, *, shared: bool = True) -> list[str]:
    """What holds for every launcher; `shared`: that nodes share a file system is left to be said."""
    said = [SHARED] if shared and chosen.nodes > 1 else []
    return [*said, PLANNED_AGAIN] if not chosen.path.endswith(".json") else said


def to_torchrun(chosen: Chosen) -> Exported:
    """One line for each node."""
    where = "NODE_0 is the name or the address of the first"
    several = chosen.nodes > 1
    how = [f"# Run on each node its own line; {where}."] if several else []
    lines = [f"# {chosen.written}", *how, *chosen.torchrun_lines(f"-m shardwise {chosen.train}")]
    what = f"on each node its line of torchrun.sh; {where}" if several else lines[1]
    limit = "torchrun gives ranks that it stops 30 s to save; what takes longer is lost back to the last checkpoint"
    return Exported(files={"torchrun.sh": "\n".join(lines) + "\n"}, said=[*_said_of(chosen), limit], run=[what])


def to_kubernetes(chosen: Chosen) -> Exported:
    """A JobSet with a pod for each node, on a volume that all of them see."""
    name = chosen.name
    first = f"{name}-node-0-0.{name}"
    line = chosen.torchrun(f"-m shardwise {chosen.train}", rank="$JOB_COMPLETION_INDEX", address=first)
    limits = {} if chosen.on_cpu else {"resources": {"limits": {"nvidia.com/gpu": chosen.processes}}}
    container: dict[str, Any] = {
        "name": "train",
        "image": "shardwise:latest",
        "workingDir": VOLUME,
        "command": ["bash", "-c", f"exec {line}"],
        "env": [{"name": "SHARDWISE_CACHE", "value": CACHE}],
        **limits,
        "volumeMounts": [{"name": "shared", "mountPath": VOLUME}, {"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "containers": [container],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    nodes = {"completionMode": "Indexed", "completions": chosen.nodes, "parallelism": chosen.nodes, "backoffLimit": 0}
    job = {"name": "node", "replicas": 1, "template": {"spec": {**nodes, "template": {"spec": pod}}}}
    spec = {"network": {"enableDNSHostnames": True, "subdomain": name}, "failurePolicy": {"maxRestarts": 3}}
    data = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {**spec, "replicatedJobs": [job]},
    }
    said = [
        "image: yours, with `pip install '.[train]'` done in a copy of Shardwise's repository",
        f"the claim `shared` is a volume that all pods write (ReadWriteMany), with {chosen.path} and what the job "
        "names in it",
        f"a pod that is stopped has {GRACE_SECONDS} s, of which torchrun gives its ranks 30 s to save; restarts go on "
        "from the last checkpoint",
        *_said_of(chosen, shared=False),
    ]
    text = as_yaml(data, comment=[chosen.written])
    return Exported(files={"jobset.yaml": text}, said=said, run=["kubectl apply -f jobset.yaml"])


def to_skypilot(chosen: Chosen) -> Exported:
    """A task of as many virtual machines as there are nodes."""
    gpu = chosen.cluster.gpu.name
    if chosen.on_cpu or gpu not in ACCELERATORS:
        known = ", ".join(sorted(set(ACCELERATORS)))
        raise UnsupportedError(f"{chosen.path}: SkyPilot has no name for {gpu} that is known here; it has {known}")
    first = '"$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"'
    line = chosen.torchrun(f"-m shardwise {chosen.train}", rank="$SKYPILOT_NODE_RANK", address=first)
    shared = {"volumes": {VOLUME: "shared"}, "envs": {"SHARDWISE_CACHE": CACHE}} if chosen.nodes > 1 else {}
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
        applied = "the volume `shared` is one that all nodes write (`sky volumes apply`)"
        said.append(f"{applied}, and output_dir lies under {VOLUME}")
    text = as_yaml(data, comment=[chosen.written])
    run = [f"sky launch -c {chosen.name} task.yaml"]
    return Exported(files={"task.yaml": text}, said=[*said, *_said_of(chosen, shared=False)], run=run)


def to_slurm(chosen: Chosen) -> Exported:
    """A batch script with one task for each rank. What asks it to stop is passed on, and a run that has saved is put
    back in the queue."""
    gpus, place = chosen.processes, "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID"
    # A line to make use of, where the duration is forecast: half as long again, in whole hours.
    limit = "HH:MM:SS" if chosen.seconds is None else f"{math.ceil(chosen.seconds * 1.5 / 3600)}:00:00"
    text = _SLURM.format(
        written=chosen.written,
        name=chosen.name,
        nodes=chosen.nodes,
        tasks=gpus,
        resources="--cpus-per-task=1" if chosen.on_cpu else f"--gpus-per-node={gpus}",
        limit=limit,
        ranks=f"{place} WORLD_SIZE={chosen.layout.world_size} LOCAL_WORLD_SIZE={gpus}",
        train=chosen.train.replace("'", "'\\''"),
    )
    return Exported(files={"train.sbatch": text}, said=_said_of(chosen), run=["sbatch train.sbatch"])


_SLURM = """\
#!/bin/bash
# {written}
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={tasks}
#SBATCH {resources}
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
##SBATCH --time={limit}
##SBATCH --partition=NAME --account=NAME
##SBATCH --cpus-per-task=8 --mem=0
# With one # less the lines above count; clusters that do not give whole nodes need the last.
# Slurm starts this where sbatch was called, on a file system that all nodes see.

export SHARDWISE_CACHE="${{SHARDWISE_CACHE:-$PWD/.shardwise-cache}}"
export MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
# Another port at each start: ranks know by it that a start is not the one before.
export MASTER_PORT=$((20000 + (SLURM_JOB_ID * 16 + ${{SLURM_RESTART_COUNT:-0}}) % 10000))

# Two minutes before the time limit, or when the job is pre-empted: the ranks save and end.
trap 'stopped=1; scancel --signal=TERM "$SLURM_JOB_ID"' TERM

# Rank 0 reports when the others have ended; after that none is waited for.
srun --kill-on-bad-exit=0 --wait=120 bash -c 'exec env {ranks} python -m shardwise {train}' &
wait $!
code=$?
if [ -n "$stopped" ]; then  # the first wait ended with the signal
  wait $!
  code=$?
fi
# 143: stopped by SIGTERM after saving. The same script goes on from there, unless `scancel` ended the job: then Slurm
# no longer counts it as running.
if [ "$code" -ne 0 ] && {{ [ -n "$stopped" ] || [ "$code" -eq 143 ]; }}; then
  scontrol show job "$SLURM_JOB_ID" | grep -q JobState=RUNNING && scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
