"""Kubernetes: a JobSet with a pod for each machine, on a volume that all of them see"""

from typing import Any

from shardwise.interop.chosen import CORES, GIB_OF_HOST, Chosen, Exported, as_yaml
from shardwise.interop.launchers import launcher_notes
from shardwise.units import format_gib

#: Where pods see the volume that they share, and what lies on it: rows that are prepared, and
#: models of the hub.
VOLUME = "/shared"
ON_VOLUME = {"SHARDWISE_CACHE": f"{VOLUME}/.shardwise-cache", "HF_HOME": f"{VOLUME}/.huggingface"}

#: How long a pod has between SIGTERM and SIGKILL, to save.
GRACE_SECONDS = 120


def to_kubernetes(chosen: Chosen) -> Exported:
    """jobset.yaml, for `kubectl apply`."""
    name = chosen.name
    nodes = {"completionMode": "Indexed", "completions": chosen.nodes, "parallelism": chosen.nodes, "backoffLimit": 0}
    job = {"name": "node", "replicas": 1, "template": {"spec": {**nodes, "template": {"spec": _pod(chosen)}}}}
    spec = {"network": {"enableDNSHostnames": True, "subdomain": name}, "failurePolicy": {"maxRestarts": 3}}
    data = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {**spec, "replicatedJobs": [job]},
    }
    text = as_yaml(data, comment=[chosen.written])
    return Exported(files={"jobset.yaml": text}, said=_said(chosen), run=["kubectl apply -f jobset.yaml"])


def _pod(chosen: Chosen) -> dict[str, Any]:
    first = f"{chosen.name}-node-0-0.{chosen.name}"
    line = chosen.torchrun(f"-m shardwise {chosen.train}", rank="$JOB_COMPLETION_INDEX", address=first)
    token = {"secretKeyRef": {"name": "huggingface", "key": "token", "optional": True}}
    container: dict[str, Any] = {
        "name": "train",
        "image": "shardwise:latest",
        "workingDir": VOLUME,
        "command": ["bash", "-c", f"exec {line}"],
        "env": [
            *({"name": key, "value": value} for key, value in ON_VOLUME.items()),
            {"name": "HF_TOKEN", "valueFrom": token},
        ],
        "resources": _resources(chosen),
        "volumeMounts": [{"name": "shared", "mountPath": VOLUME}, {"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "containers": [container],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }


def _resources(chosen: Chosen) -> dict[str, Any]:
    """Requests too: without them a pod may be put beside others that need all of the host."""
    asked = {"cpu": str(CORES * chosen.processes), "memory": f"{chosen.gib_of_host}Gi"}
    if chosen.on_cpu:
        return {"requests": asked}
    device = "amd.com/gpu" if chosen.on_amd else "nvidia.com/gpu"
    return {"requests": asked, "limits": {device: chosen.processes}}


def _said(chosen: Chosen) -> list[str]:
    said = [
        "image: yours, with `pip install '.[train]'` done in a copy of Shardwise's repository",
        f"the claim `shared` is a volume that all pods write (ReadWriteMany), with {chosen.path} and what the job "
        "names in it; models of the hub are kept there too",
        "models that ask who you are: kubectl create secret generic huggingface --from-literal token=...",
        f"requests are {CORES} cores and {GIB_OF_HOST} GiB of the host for each rank, to begin with"
        + (f", and the {format_gib(chosen.host_bytes)} that it keeps there" if chosen.host_bytes else ""),
        f"a pod that is stopped has {GRACE_SECONDS} s, of which torchrun gives its ranks 30 s to save; restarts go on "
        "from the last checkpoint",
    ]
    if chosen.nodes > 1:
        said.append(
            "pods talk over the cluster's own network, as written; for RDMA add the device that your cluster has "
            "(`rdma/...` under limits), or hostNetwork: true with dnsPolicy: ClusterFirstWithHostNet"
        )
    return [*said, *launcher_notes(chosen, shared=False)]
