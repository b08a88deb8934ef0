"""Kubernetes: a JobSet that trains a plan"""

from __future__ import annotations

from typing import Any

from shardwise.interop.chosen import Chosen, Exported, as_yaml
from shardwise.interop.torchrun import said_of

#: Where pods see the shared file system.
VOLUME = "/shared"

#: How long a pod has between SIGTERM and SIGKILL, to save.
GRACE_SECONDS = 120


def to_kubernetes(chosen: Chosen) -> Exported:
    """A JobSet with a pod for each node, on a volume that all of them see."""
    name = chosen.name
    line = chosen.torchrun(
        f"-m shardwise {chosen.train}", rank="$JOB_COMPLETION_INDEX", address=f"{name}-node-0-0.{name}"
    )
    limits = {} if chosen.on_cpu else {"resources": {"limits": {"nvidia.com/gpu": chosen.processes}}}
    container: dict[str, Any] = {
        "name": "train",
        "image": "shardwise:latest",
        "workingDir": VOLUME,
        "command": ["bash", "-c", f"exec {line}"],
        "env": [{"name": "SHARDWISE_CACHE", "value": f"{VOLUME}/.shardwise-cache"}],
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
        *said_of(chosen)[chosen.nodes > 1 :],
    ]
    text = as_yaml(data, comment=[chosen.written])
    return Exported(files={"jobset.yaml": text}, said=said, run=["kubectl apply -f jobset.yaml"])
