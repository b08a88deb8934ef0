"""Pods of each JobSet by Kubernetes' own schemas, which refuse keys that there are not."""

import kubernetes_validate
from given import cases, read_yaml

for folder, *_ in cases():
    made = read_yaml(folder / "jobset.yaml")
    (job,) = made["spec"]["replicatedJobs"]
    whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "node"}, **job["template"]}
    kubernetes_validate.validate(whole, kubernetes_validate.latest_version(), strict=True)
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
    resources = container["resources"]
    device = "amd.com/gpu" if "MI300X" in folder.name else "nvidia.com/gpu"
    assert resources["limits"].keys() == {device}, resources
    assert resources["requests"].keys() == {"cpu", "memory"}
    print(f"{folder.name}: a Job of Kubernetes {kubernetes_validate.latest_version()}, {resources['limits']}")
