"""Files that start Shardwise elsewhere: they say the plan's numbers, and keep to schemas."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from shardwise.catalog.gpus import known_gpus
from shardwise.interop.chosen import Chosen
from shardwise.interop.skypilot import ACCELERATORS
from shardwise.units import GIB
from tests.refusals import said_by
from tests.unit.interop.conftest import export, make

SCHEMAS = Path(__file__).parent / "schemas"
TWO_NODES: dict[str, Any] = {"hardware": "2 x 4x H100-SXM", "layout": {"dp_replicate": 2, "dp_shard": 4}}


def yaml_of(text: str) -> Any:
    """As YAML 1.1, which most readers have."""
    reader = YAML(typ="safe", pure=True)
    reader.version = (1, 1)
    return reader.load(text)


def test_torchrun_has_one_line_for_each_node_and_counts_no_gpus_left_alone() -> None:
    one = export(make(), "torchrun")
    line = "torchrun --standalone --nproc-per-node 2 -m shardwise train plan.json"
    assert one.files["torchrun.sh"].splitlines() == ["# fsdp on 2x L4", line]
    assert one.run == [line]
    two = export(make(**TWO_NODES), "torchrun")
    how, first, second = two.files["torchrun.sh"].splitlines()[1:]
    assert how == "# Run on each node its own line; NODE_0 is the name or the address of the first."
    assert '--nnodes 2 --nproc-per-node 4 --node-rank 0 --master-addr "$NODE_0"' in first
    assert "--node-rank 1 " in second
    assert any("SHARDWISE_CACHE" in sentence for sentence in two.said)
    chosen = make(hardware="8x H100-SXM", layout={"dp_shard": 4})
    text = export(chosen, "torchrun").files["torchrun.sh"]
    assert "--nproc-per-node 4 -m shardwise train plan.json --set 'hardware=4x H100-SXM'" in text
    assert "train plan.json --set '\\''hardware=4x H100-SXM'\\''' &" in export(chosen, "slurm").files["train.sbatch"]


def test_the_batch_script_has_a_task_for_each_rank_and_passes_signals_on(tmp_path) -> None:
    text = export(make(**TWO_NODES), "slurm").files["train.sbatch"]
    asked = [line.split(maxsplit=1)[1] for line in text.splitlines() if line.startswith("#SBATCH ")]
    for option in ("--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", "--signal=B:TERM@120", "--requeue"):
        assert option in asked
    assert {"--time=3:00:00", "--cpus-per-task=4", "--mem=0"} <= set(asked)  # half as long again as 5000 s
    assert 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"' in text
    assert "WORLD_SIZE=8 LOCAL_WORLD_SIZE=4 python -m shardwise train plan.json" in text
    assert "gpus" not in export(make(hardware="cpu:2"), "slurm").files["train.sbatch"].replace("2x", "")


def test_the_batch_script_has_in_force_what_the_plan_knows_and_says_why_the_rest_is_not() -> None:
    """Whole machines: all their memory; a part of one: what offload keeps there, where it does."""

    def asked(chosen: Chosen) -> tuple[dict[str, str], str]:
        written = export(chosen, "slurm")
        lines = (line for line in written.files["train.sbatch"].splitlines() if line.startswith("#SBATCH --"))
        return dict(line.removeprefix("#SBATCH --").split("=") for line in lines if "=" in line), " ".join(written.said)

    whole, said = asked(make(hardware="8x H100-SXM", layout={"dp_shard": 8}))
    assert (whole["cpus-per-task"], whole["mem"], whole["time"]) == ("4", "0", "3:00:00") and "in force" not in said
    part, said = asked(make(hardware="4x H100-SXM", layout={"dp_shard": 4}))
    assert "mem" not in part and "--mem is not in force: the job takes part of a machine, whose memory" in said
    offloaded = replace(make(hardware="4x H100-SXM", layout={"dp_shard": 4}), host_bytes=20 * GIB - 1)
    assert asked(offloaded)[0]["mem"] == "144G"  # 16 GiB of a rank to begin with, and 20
    pods = yaml_of(export(offloaded, "kubernetes").files["jobset.yaml"])["spec"]["replicatedJobs"][0]["template"]
    requests = pods["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]
    assert requests == {"cpu": "16", "memory": "144Gi"}
    endless, said = asked(replace(make(), seconds=None))
    assert "time" not in endless and "--time is not in force: how long the run takes is not known" in said
    assert asked(make(hardware="cpu:2"))[0]["cpus-per-task"] == "1"


@pytest.mark.parametrize(
    ("asked_to_stop", "code", "state", "requeued"),
    [
        (False, 0, "RUNNING", 0),
        (True, 143, "RUNNING", 1),
        (False, 143, "RUNNING", 1),
        (False, 1, "RUNNING", 0),
        (True, 143, "COMPLETING", 0),  # cancelled by its user
    ],
)
def test_the_batch_script_queues_again_a_run_that_has_saved(tmp_path, asked_to_stop, code, state, requeued):
    """Programs of Slurm's names note what they are asked; `make test-nodes` has a real Slurm."""
    notes = tmp_path / "notes"
    scancel = f'#!/bin/bash\necho "scancel $*" >> {notes}\ntouch {tmp_path}/stop\n'
    signal = "kill -TERM $PPID\nwhile [ ! -e stop ]; do sleep 0.05; done\n" if asked_to_stop else ""
    programs = {
        "scontrol": f'#!/bin/bash\necho "scontrol $*" >> {notes}\n'
        f'[ "$2" = job ] && echo "   JobState={state} Reason=None" || echo node0\n',
        "scancel": scancel,
        "srun": f'#!/bin/bash\necho "srun $MASTER_ADDR $MASTER_PORT" >> {notes}\n{signal}exit {code}\n',
    }
    for name, script in programs.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "train.sbatch").write_text(export(make(), "slurm").files["train.sbatch"])
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[0-1]"}
    bash = shutil.which("bash") or "bash"
    done = subprocess.run([bash, "train.sbatch"], cwd=tmp_path, env=environment, timeout=30, check=False)
    assert done.returncode == code
    said = notes.read_text()
    assert "srun node0 20112" in said
    assert said.count("scancel --signal=TERM 7") == int(asked_to_stop)
    assert said.count("scontrol requeue 7") == requeued


@pytest.mark.parametrize(
    ("case", "limits"),
    [
        ({}, {"nvidia.com/gpu": 2}),
        (TWO_NODES, {"nvidia.com/gpu": 4}),
        ({"hardware": "2x MI300X"}, {"amd.com/gpu": 2}),
        ({"hardware": "cpu:2"}, None),
    ],
)
def test_the_jobset_keeps_to_its_published_schema(case, limits) -> None:
    written = export(make(**case), "kubernetes")
    assert written.said[0] == "image: yours, with `pip install '.[train]'` done in a copy of Shardwise's repository"
    made = yaml_of(written.files["jobset.yaml"])
    schema = json.loads((SCHEMAS / "jobset.json").read_text())
    jsonschema.validate(made, schema)
    pods = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    nodes = 2 if case is TWO_NODES else 1
    assert pods["completions"] == pods["parallelism"] == nodes
    (container,) = pods["template"]["spec"]["containers"]
    assert container["resources"].get("limits") == limits
    assert container["resources"]["requests"] == {"cpu": "16", "memory": "64Gi"} or nodes == 1
    assert {"HF_HOME", "HF_TOKEN", "SHARDWISE_CACHE"} == {variable["name"] for variable in container["env"]}
    assert any("for RDMA add the device" in sentence for sentence in written.said) == (nodes == 2)
    if nodes == 2:
        assert "--node-rank $JOB_COMPLETION_INDEX --master-addr first-node-0-0.first " in container["command"][-1]
    made["spec"]["replicatedJobs"][0]["template"]["spec"]["completion_mode"] = "Indexed"
    said_by(jsonschema.ValidationError, jsonschema.validate, made, schema)


@pytest.mark.parametrize(("folder", "name"), [("7B_lora.v2", "run-7b-lora-v2"), ("first", "first"), ("__", "run")])
def test_runs_are_named_as_services_of_kubernetes_and_clusters_of_skypilot_may_be(folder, name) -> None:
    """RFC 1035 labels: a letter first."""
    chosen = make(job={"output_dir": f"runs/{folder}"})
    jobset = yaml_of(export(chosen, "kubernetes").files["jobset.yaml"])
    assert jobset["metadata"]["name"] == jobset["spec"]["network"]["subdomain"] == name
    assert export(chosen, "skypilot").run == [f"sky launch -c {name} task.yaml"]


@pytest.mark.parametrize("case", [{}, TWO_NODES])
def test_the_skypilot_task_keeps_to_its_published_schema(case) -> None:
    written = export(make(**case), "skypilot")
    made = yaml_of(written.files["task.yaml"])
    assert made["setup"] == "pip install './shardwise[train]'\n"
    assert written.said[1].endswith("a copy of its repository, which lies in the folder `shardwise` here")
    schema = json.loads((SCHEMAS / "skypilot.json").read_text())
    jsonschema.validate(made, schema)
    several = {"infra": "kubernetes", "accelerators": {"H100-SXM": 4, "H100": 4}, "network_tier": "best"}
    assert made["resources"] == (several if case else {"accelerators": {"L4": 2}})
    assert ("volumes" in made) == bool(case)
    assert made["num_nodes"] == (2 if case else 1)
    assert ("$SKYPILOT_NODE_RANK" in made["run"]) == bool(case)
    said_by(jsonschema.ValidationError, jsonschema.validate, {**made, "nodes": 2}, schema)


@pytest.mark.parametrize(
    ("gpu", "names"),
    [("RTX-4090", {"RTX4090"}), ("RTX-A6000", {"A6000", "RTXA6000"}), ("MI300X", {"MI300X"}), ("GH200", {"GH200"})],
)
def test_skypilot_is_asked_for_any_of_its_names_of_a_gpu(gpu, names) -> None:
    made = yaml_of(export(make(layout={}, hardware=f"1x {gpu}"), "skypilot").files["task.yaml"])
    assert made["resources"] == {"accelerators": dict.fromkeys(names, 1)}


def test_skypilots_names_are_of_the_catalogue_and_no_pcie_card_passes_for_one_with_nvlink() -> None:
    assert set(ACCELERATORS) <= set(known_gpus())
    made = yaml_of(export(make(hardware="2x H100-SXM"), "skypilot").files["task.yaml"])
    first, *placed = made["resources"]["any_of"]
    assert first == {"accelerators": {"H100-SXM": 2}}
    assert {one["infra"] for one in placed} == {"aws", "gcp", "nebius"}
    (pcie,) = [yaml_of(export(make(hardware="2x H100-PCIe"), "skypilot").files["task.yaml"])["resources"]]
    assert pcie == {"infra": "runpod", "accelerators": {"H100": 2}}
