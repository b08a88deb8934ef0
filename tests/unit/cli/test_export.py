"""`shardwise export` as a user meets it: what goes to stdout, what to files, and what is refused."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Shardwise

JOB = """\
model: tinyllama-1.1b
data: {path: rows.jsonl}
train: {max_steps: 10}
hardware: 2x L4
layout: fsdp
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def test_one_file_is_printed_alone_and_all_else_is_said_beside_it(shardwise: Shardwise, job: Path) -> None:
    said = shardwise("export", str(job), "--to", "deepspeed")
    assert said.code == 0
    assert json.loads(said.out)["zero_optimization"]["stage"] == 3
    assert "note: the script says schedule: linear" in said.err
    assert "the script train.py is yours, and hands deepspeed.json to deepspeed.initialize" in said.err
    assert said.err.splitlines()[-2:] == ["next:", "  torchrun --standalone --nproc-per-node 2 train.py"]


def test_a_plan_and_its_job_export_the_same_and_a_plan_holds_the_run_to_itself(
    shardwise: Shardwise, job: Path, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    assert shardwise("plan", str(job), "--output", str(plan)).code == 0
    of_job, of_plan = (shardwise("export", str(file), "--to", "torchrun") for file in (job, plan))
    assert of_job.out.replace(str(job), str(plan)) == of_plan.out
    assert "the job file is planned again when it starts; export a plan.json" in of_job.err
    assert "planned again" not in of_plan.err
    changed = shardwise("export", str(plan), "--to", "torchrun", "--set", "layout=ddp")
    assert changed.code == 2
    assert "--set changes a job, and this is a plan; set it in `shardwise plan`" in changed.err


def test_a_run_on_fewer_gpus_than_there_are_is_told_so(shardwise: Shardwise, job: Path) -> None:
    fewer = ("--set", "hardware=8x L4", "--set", "goal=fewest-gpus", "--set", "layout=auto")
    said = shardwise("export", str(job), "--to", "torchrun", *fewer)
    assert said.out.splitlines()[-1].endswith(f"--nproc-per-node 1 -m shardwise train {job} --set 'hardware=1x L4'")


def test_several_files_need_a_folder(shardwise: Shardwise, job: Path, tmp_path: Path) -> None:
    refused = shardwise("export", str(job), "--to", "trl")
    sentence = "error: --to trl makes sft.py and accelerate.yaml; name a folder for them with --output"
    assert (refused.code, refused.err.strip()) == (2, sentence)
    out = tmp_path / "out"
    written = shardwise("export", str(job), "--to", "trl", "--output", str(out))
    assert written.code == 0
    assert sorted(path.name for path in out.iterdir()) == ["accelerate.yaml", "sft.py"]
    assert written.out.startswith(f"wrote {out}/sft.py\n")
    assert written.out.endswith(f"next:\n  accelerate launch --config_file {out}/accelerate.yaml {out}/sft.py\n")
    (tmp_path / "file").write_text("")
    in_the_way = shardwise("export", str(job), "--to", "trl", "--output", str(tmp_path / "file"))
    assert in_the_way.code == 2
    assert "cannot be written: File exists; name another folder" in in_the_way.err


@pytest.mark.parametrize(
    ("to", "line"),
    [
        ("slurm", "sbatch OUT/train.sbatch"),
        ("kubernetes", "kubectl apply -f OUT/jobset.yaml"),
        ("skypilot", "sky launch -c first OUT/task.yaml"),
        ("torchrun", "on each node its line of OUT/torchrun.sh; NODE_0 is the name or the address of the first"),
    ],
)
def test_what_to_run_next_names_files_where_they_were_written(
    shardwise: Shardwise, job: Path, tmp_path: Path, to: str, line: str
) -> None:
    """The commands are run where the job lies, because the files name it from there."""
    out = tmp_path / "out"
    said = shardwise("export", str(job), "--to", to, "--output", str(out), "--set", "hardware=2 x 1x L4")
    assert said.code == 0
    assert said.out.splitlines()[-1].strip() == line.replace("OUT", str(out))


ADAFACTOR = ("train.optimizer=adafactor", "train.offload=optimizer")


def test_an_unknown_target_and_a_plan_that_is_not_trained_or_does_not_fit_are_refused(
    shardwise: Shardwise, job: Path
) -> None:
    for to, sets, words in (
        ("ray", (), "--to ray: there is no such target; write one of torchrun, slurm, kubernetes, skypilot, acc"),
        ("slurm", ADAFACTOR, "optimizer adafactor is not trained with offload"),
        ("slurm", ("model=llama-3.1-70b",), "nothing fits, and so there is nothing to export; plan a smaller job"),
    ):
        said = shardwise("export", job, "--to", to, *(word for one in sets for word in ("--set", one)))
        assert said.code == 2
        assert words in said.err
