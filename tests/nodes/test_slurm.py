"""The batch scripts of docs/howto/nodes.md and of `export` on a real Slurm: a job is pre-empted,
requeued, and goes on; a task may see one GPU of several."""

import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shardwise import api
from shardwise.spec.run import RunDirectory, read_metrics
from tests.nodes import slurm as installed
from tests.nodes.conftest import Cluster, verdict
from tests.nodes.slurm import GPUS, Slurm, slurm
from tests.nodes.test_nodes import assert_equal
from tests.unit.fakes import nvidia_smi

pytestmark = pytest.mark.skipif(installed.lacking() is not None, reason=str(installed.lacking()))

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "nodes.md"


def of_the_page(folder: Path, job: Path) -> dict[str, str]:
    """The page's script, on processors."""
    found = re.search(r'```sh title="job.sbatch"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    assert found is not None
    (folder / "job.sbatch").write_text(found[1])
    program = f"exec {shlex.quote(sys.executable)} -m shardwise.cli.main"
    return {
        " --gpus-per-node=8": "",
        "/shared/cache": str(folder / "cache"),
        "exec shardwise": program,
        "job.yaml": str(job),
    }


def exported(folder: Path, job: Path) -> dict[str, str]:
    """What `export` writes for two processes of one machine; here of two."""
    api.write_plan(api.plan(job), folder / "plan.json")
    api.write_export(api.export(folder / "plan.json", to="slurm"), folder)
    (folder / "train.sbatch").rename(folder / "job.sbatch")
    return {
        "--nodes=1": "--nodes=2",
        "--ntasks-per-node=2": "--ntasks-per-node=1",
        "LOCAL_WORLD_SIZE=2": "LOCAL_WORLD_SIZE=1",
        # Named so it starts cold: a warm process is on no machine of these.
        "python -m shardwise ": f"{shlex.quote(sys.executable)} -m shardwise.cli.main ",
    }


#: What becomes of a job that is not queued again.
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")

SCRIPTS = {"of the page": of_the_page, "exported": exported}


def script(folder: Path, written: dict[str, str]) -> str:
    """The path of the script, after what has to be another here."""
    path = folder / "job.sbatch"
    text = path.read_text()
    for there, here in written.items():
        assert there in text, there
        text = text.replace(there, here)
    path.write_text(text)
    return str(path)


def wait_until(job: str, cluster: Slurm, condition: Callable[[dict[str, str]], bool]) -> dict[str, str]:
    deadline = time.monotonic() + 200
    while not condition(state := cluster.state(job)):
        assert time.monotonic() < deadline, (state, cluster.ask("cat", state["StdOut"]))
        time.sleep(0.5)
    return state


def ask_to_stop(cluster: Slurm, job: str, folder: Path) -> None:
    """As an administrator does."""
    cluster.ask("scancel", "--signal=TERM", job)


def preempt(cluster: Slurm, job: str, folder: Path) -> None:
    """A more urgent job takes both machines."""
    urgent = ("--partition=urgent", "--nodes=2", "--ntasks-per-node=2", f"--output={folder}/urgent")
    cluster.ask("sbatch", *urgent, "--wrap=srun hostname")


@contextmanager
def _begun(two: Cluster, batch: str, folder: Path, run: RunDirectory) -> Generator[tuple[Slurm, str]]:
    """A cluster, and a job that has taken some steps there."""
    for node in two.nodes:
        node.slow(rate="20mbit", delay="5ms")  # so that the run is not over before Slurm has a say
    with slurm(two.nodes, folder=folder / "slurm") as cluster:
        job = cluster.ask("sbatch", "--parsable", "--chdir", str(folder), batch).strip()
        wait_until(job, cluster, lambda state: len(read_metrics(run)) >= 3 or state["JobState"] in ENDED)
        yield cluster, job


@pytest.mark.parametrize(
    ("written", "stop"), [("of the page", preempt), ("exported", preempt), ("exported", ask_to_stop)]
)
def test_a_job_that_is_preempted_saves_is_requeued_and_ends_equal(written, stop, two, job_file, tmp_path) -> None:
    train: dict[str, Any] = {"max_steps": 40, "optimizer": "sgd", "lr_scheduler_type": "constant", "warmup_steps": 0}
    path, run = job_file(train=train, layout="fsdp", hardware="cpu:2")
    whole, alone = job_file("alone", train=train, hardware="cpu:1")
    with _begun(two, script(tmp_path, SCRIPTS[written](tmp_path, path)), tmp_path, run) as (cluster, job):
        began = time.monotonic()
        stop(cluster, job, tmp_path)
        state = wait_until(job, cluster, lambda state: state["Restarts"] == "1" or state["JobState"] in ENDED)
        assert state["Restarts"] == "1", Path(state["StdOut"]).read_text()
        verdict(f"Slurm, script {written}, {stop.__name__}: until the job was saved and requeued", began)
        (step, folder), *_ = run.checkpoints()
        assert 3 <= step < train["max_steps"]
        wait_until(job, cluster, lambda state: state["JobState"] == "PENDING")
        # Not two minutes later; nor while slurmd revokes the job's credential.
        cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now+5")
        state = wait_until(job, cluster, lambda state: state["JobState"] in ENDED)
        said = Path(state["StdOut"]).read_text()
    assert state["JobState"] == "COMPLETED", said + (tmp_path / "slurm" / "slurmctld.log").read_text()
    assert f"stopped after step {step} by SIGTERM; the same command goes on from {folder}" in said
    assert f"first step {step + 1}" in said
    if stop is preempt:
        assert sorted((tmp_path / "urgent").read_text().split()) == ["n0", "n0", "n1", "n1"]
    api.train(whole)
    assert_equal(run, RunDirectory(alone.root))


@pytest.mark.parametrize("written", SCRIPTS)
def test_a_job_that_its_user_cancels_is_not_queued_again(written, two: Cluster, job_file, tmp_path: Path) -> None:
    path, run = job_file(train={"max_steps": 400}, layout="fsdp", hardware="cpu:2")
    with _begun(two, script(tmp_path, SCRIPTS[written](tmp_path, path)), tmp_path, run) as (cluster, job):
        cluster.ask("scancel", job)
        state = wait_until(job, cluster, lambda state: state["JobState"] in (*ENDED, "PENDING"))
    assert (state["JobState"], state["Restarts"]) == ("CANCELLED", "0")


#: What a rank finds: the hardware of a job without `hardware`, and which device is its own.
LOOK = """
import json, os
from pathlib import Path
from shardwise.launch.processes.torchrun import place_in_group
from shardwise.launch.requirements import training_cluster
from shardwise.parallel.mesh import device_index
from shardwise.spec.request import read_request
place, visible = place_in_group(), os.environ["CUDA_VISIBLE_DEVICES"]
cluster = training_cluster(read_request(Path(os.environ["JOB"])), place=place)
index = device_index(int(os.environ["LOCAL_RANK"]), visible=len(visible.split(",")))
print(json.dumps([place.rank, visible, index, cluster.name]), flush=True)
"""


@pytest.mark.parametrize(
    ("option", "seen"),
    [("--gpus-per-task=1", [("0", 0), ("1", 0)]), (f"--gpus-per-node={GPUS}", [("0,1", 0), ("0,1", 1)])],
)
def test_a_rank_takes_the_one_gpu_its_task_sees_or_that_of_its_number(option, seen, two, job_file, tmp_path) -> None:
    """Slurm deals the GPUs, which are files of no device; nvidia-smi is a program of that name."""
    path, _ = job_file()
    card = "{0}, GPU-{0}, NVIDIA H100 80GB HBM3, 81559, 570.1, 81037, Disabled\n"
    nvidia_smi(tmp_path, gpus="".join(card.format(index) for index in range(GPUS)))
    (tmp_path / "look.py").write_text(LOOK)
    place = "RANK=$SLURM_PROCID WORLD_SIZE=4 LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=2 MASTER_ADDR=n0 MASTER_PORT=1"
    here = f"PATH={tmp_path}:$PATH JOB={path}"
    line = f"exec env {place} {here} {shlex.quote(sys.executable)} {tmp_path}/look.py"
    with slurm(two.nodes, folder=tmp_path / "slurm") as cluster:
        said = cluster.ask("srun", "--nodes=2", f"--ntasks-per-node={GPUS}", option, "bash", "-c", line)
    found = sorted(json.loads(line) for line in said.splitlines() if line.startswith("["))
    assert found == [[rank, *seen[rank % GPUS], "2 x 2x H100-SXM"] for rank in range(2 * GPUS)]
