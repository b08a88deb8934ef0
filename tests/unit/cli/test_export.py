"""`shardwise init` and `export` as a user meets them."""

import importlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from shardwise.api import plan, recipes
from shardwise.catalog.gpus import parse_hardware
from shardwise.spec.job.file import read_job

JOB = """\
model: tinyllama-1.1b
data: {path: rows.jsonl}
train: {max_steps: 10}
hardware: 2x L4
layout: fsdp
"""
ADAFACTOR = ("train.optimizer=adafactor", "train.offload=optimizer")
#: Recipes whose models the catalogue has not; measuring their blocks takes half a minute.
HYBRID = {"hybrid-24gb": ("transformers.models.qwen3_5.configuration_qwen3_5", "Qwen3_5Config")}
RECIPES = [pytest.param(name, marks=[pytest.mark.rare] * (name in HYBRID)) for name in recipes()]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def test_one_file_is_printed_alone_and_a_run_on_fewer_gpus_is_told_so(shardwise, job: Path) -> None:
    said = shardwise("export", str(job), "--to", "deepspeed")
    assert said.code == 0
    assert json.loads(said.out)["zero_optimization"]["stage"] == 3
    assert "note: the script says schedule: linear" in said.err
    assert "the script train.py is yours, and hands deepspeed.json to deepspeed.initialize" in said.err
    assert said.err.splitlines()[-2:] == ["next:", "  torchrun --standalone --nproc-per-node 2 train.py"]
    fewer = ("--set", "hardware=8x L4", "--set", "goal=fewest-gpus", "--set", "layout=auto")
    said = shardwise("export", str(job), "--to", "torchrun", *fewer)
    sets = "--set goal=fewest-gpus --set layout=auto --set 'hardware=1x L4'"
    assert said.out.splitlines()[-1].endswith(f"--nproc-per-node 1 -m shardwise train {job} {sets}")


def test_a_plan_and_its_job_export_the_same_and_a_plan_holds_the_run_to_itself(shardwise, job, tmp_path) -> None:
    plan = tmp_path / "plan.json"
    assert shardwise("plan", str(job), "--output", str(plan)).code == 0
    of_job, of_plan = (shardwise("export", str(file), "--to", "torchrun") for file in (job, plan))
    assert of_job.out.replace(str(job), str(plan)) == of_plan.out
    assert "the job file is planned again when it starts; export a plan.json" in of_job.err
    assert "planned again" not in of_plan.err
    changed = shardwise.refused("export", str(plan), "--to", "torchrun", "--set", "layout=ddp")
    assert "--set changes a job, and this is a plan; set it in `shardwise plan`" in changed


def test_a_plan_that_was_written_by_hand_is_refused(shardwise, job, tmp_path) -> None:
    path = tmp_path / "plan.json"
    assert shardwise("plan", str(job), "--output", str(path)).code == 0
    path.write_text(json.dumps({**json.loads(path.read_text()), "model": {}}))
    said = shardwise.refused("export", str(path), "--to", "trl")
    assert "`model` or `hardware` is not as a plan has it; write it anew with `shardwise plan --output`" in said


def test_several_files_need_a_folder(shardwise, job: Path, tmp_path: Path) -> None:
    sentence = "error: --to trl makes sft.py and accelerate.yaml; name a folder for them with --output"
    assert shardwise.refused("export", str(job), "--to", "trl").strip() == sentence
    out = tmp_path / "out"
    written = shardwise("export", str(job), "--to", "trl", "--output", str(out))
    assert written.code == 0
    assert sorted(path.name for path in out.iterdir()) == ["accelerate.yaml", "sft.py"]
    assert written.out.startswith(f"wrote {out}/sft.py\n")
    assert written.out.endswith(f"next:\n  accelerate launch --config_file {out}/accelerate.yaml {out}/sft.py\n")
    (tmp_path / "file").write_text("")
    in_the_way = shardwise.refused("export", str(job), "--to", "trl", "--output", str(tmp_path / "file"))
    assert "cannot be written: File exists; name another folder" in in_the_way


@pytest.mark.parametrize(
    ("to", "line"),
    [
        ("slurm", "sbatch OUT/train.sbatch"),
        ("kubernetes", "kubectl apply -f OUT/jobset.yaml"),
        ("skypilot", "sky launch -c first OUT/task.yaml"),
        ("torchrun", "on each node its line of OUT/torchrun.sh; NODE_0 is the name or the address of the first"),
    ],
)
def test_what_to_run_next_names_files_where_they_were_written(shardwise, job, tmp_path, to, line) -> None:
    """The commands are run where the job lies, because the files name it from there."""
    out = tmp_path / "out"
    said = shardwise("export", str(job), "--to", to, "--output", str(out), "--set", "hardware=2 x 1x L4")
    assert said.code == 0 and said.out.splitlines()[-1].strip() == line.replace("OUT", str(out))


def test_an_unknown_target_and_a_plan_that_is_not_trained_or_does_not_fit_are_refused(shardwise, job) -> None:
    for to, sets, words in (
        ("ray", (), "--to ray: there is no such target; write one of torchrun, slurm, kubernetes, skypilot, acc"),
        ("torchtitan", ("method=lora",), f"{job}: method lora is not exported to torchtitan: its adapters are not"),
        ("slurm", ADAFACTOR, "optimizer adafactor is not trained with offload"),
        ("slurm", ("model=llama-3.1-70b",), "nothing fits, and so there is nothing to export; plan a smaller job"),
    ):
        assert words in shardwise.refused("export", job, "--to", to, *(word for one in sets for word in ("--set", one)))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_planned_as_it_claims(name: str, tmp_path: Path, shardwise) -> None:
    file, models = tmp_path / "job.yaml", []
    if name in HYBRID:  # transformers' defaults are those of Qwen3.5-9B
        module, config = HYBRID[name]
        getattr(importlib.import_module(module), config)(dtype="bfloat16").save_pretrained(tmp_path / "model")
        models = [f"model={tmp_path / 'model'}"]
    assert shardwise("init", file, "--recipe", name).code == 0
    claim = re.search(r"^# Planned: (.+), fits\.$", file.read_text(), re.MULTILINE)
    made = plan(file, overrides=["data.num_rows=20000", *models])
    assert made.best.execution.layout.strategy == claim[1]
    assert (made.best.not_trained, made.best.execution.offload) == ((), "none")
    assert made.chance is None or made.chance.in_100 >= 95


def test_recipes_are_listed_and_another_name_is_refused(tmp_path: Path, shardwise) -> None:
    listed = shardwise("init", "--recipe", "list").out.splitlines()
    assert [line.split()[0] for line in listed] == [*recipes()] and len(listed) >= 13
    said = shardwise("init", tmp_path / "job.yaml", "--recipe", "moon")
    assert (said.code, (tmp_path / "job.yaml").exists()) == (2, False)
    assert "--recipe moon: there is no such recipe; there are: 32b-8gpus, " in said.err


@pytest.mark.parametrize(("kind", "hardware"), [("cpu", "any"), ("cuda", None)])
def test_where_there_is_no_gpu_what_can_be_rented_is_compared(kind, hardware, tmp_path, shardwise, monkeypatch) -> None:
    here = replace(parse_hardware("1x L4").gpu, kind=kind)
    cluster = replace(parse_hardware("1x L4"), node=replace(parse_hardware("1x L4").node, gpu=here))
    monkeypatch.setattr("shardwise.api.plans.planning.this_machine", lambda: cluster)
    assert shardwise("init", tmp_path / "job.yaml", "--yes").code == 0
    assert read_job(tmp_path / "job.yaml").hardware == hardware


def test_options_answer_and_comments_stay(tmp_path: Path, shardwise) -> None:
    file = tmp_path / "my job.yaml"
    options = ("--model", "llama-3.2-1b", "--data", "my chats.jsonl", "--hardware", "2 x 8x H100-SXM")
    said = shardwise("init", file, *options, "--goal", "cheapest", "--yes").out
    lacks = "my chats.jsonl is not here yet; put your rows there, or name others as data.path in"
    assert said == f"wrote {file}; next: shardwise plan '{file}'\nnote: {lacks} {file}\n"
    job, text = read_job(file), file.read_text()
    assert (job.model, job.hardware, job.goal) == ("llama-3.2-1b", "2 x 8x H100-SXM", "cheapest")
    assert job.data.path[0].path == "my chats.jsonl"
    assert "model: llama-3.2-1b   # hub id" in text and "Planned" not in text
    assert "is there already; name another file" in shardwise.refused("init", file, "--yes")


def test_questions_are_answered_on_a_terminal(tmp_path: Path, shardwise, monkeypatch) -> None:
    answers = iter(["smollm2-135m", "rows.csv", "this", "fastest", "runs/mine"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(typer, "prompt", lambda *_, **__: next(answers))
    file = tmp_path / "job.yaml"
    assert shardwise("init", file).code == 0
    job = read_job(file)
    assert (job.model, job.hardware, job.output_dir) == ("smollm2-135m", None, "runs/mine")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "init asks on a terminal, and there is none; state --model, --data, --hardware, --goal and --output-dir"),
        (("--yes", "--hardware", "3x RTX-9999"), "RTX-9999"),
        (("--yes", "--goal", "best"), "goal"),
    ],
)
def test_what_cannot_be_asked_or_read_is_said(options, words, tmp_path, shardwise) -> None:
    assert words in shardwise.refused("init", tmp_path / "job.yaml", *options)
    assert not (tmp_path / "job.yaml").exists()
