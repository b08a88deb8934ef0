"""`train` from the job file to the report, with small programs in place of the real ones."""

import json
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from shardwise import api, errors
from shardwise.catalog import probe
from shardwise.catalog.calibration import noted_runs
from shardwise.catalog.probe import FoundGpu
from shardwise.cli.progress import plan_lines
from shardwise.launch.processes import helpers
from shardwise.launch.processes import torchrun as joined
from shardwise.spec.job.file import read_job
from shardwise.spec.plan.file import read_plan
from shardwise.spec.run import RunDirectory
from tests.marks import first
from tests.refusals import must_refuse, said_by
from tests.unit.api.conftest import CONFIG, TRAIN
from tests.unit.fakes import nvidia_smi, processes_of
from tests.warm.shim import KIND

GPUS = [FoundGpu(index=n, uuid=str(n), name="H100-SXM", memory_bytes=80 * 10**9, driver="1") for n in range(4)]
REFUSING = "print('error: rows.jsonl:3: empty', file=sys.stderr); sys.exit(2)"


def test_a_job_becomes_a_run_directory_with_everything_in_it(make, job, capfd) -> None:
    path = job("# a comment of the user's")
    updates: list[api.Update] = []
    result = api.train(path, on_update=updates.append)
    assert (result.outcome, result.step) == ("finished", 3)
    assert result.run.job.read_text() == path.read_text()
    chosen = read_plan(result.run.plan).best
    assert chosen.execution.layout.world_size == 2
    resolved = read_job(result.run.resolved)
    assert resolved.data == read_job(path).data
    assert resolved.layout.to_layout() == chosen.execution.layout
    assert (resolved.train.micro_batch_size, resolved.train.precision) == (chosen.execution.micro_batch_size, "fp32")
    assert "auto" not in [*resolved.train.model_dump().values(), resolved.layout, resolved.hardware]
    assert result.run.report_json.exists() and result.run.report_html.exists()
    totals = [u.plan.best.time.total_seconds for u in updates if isinstance(u, api.Planned) and u.plan.best]
    assert totals[0] is None
    assert totals[-1] is not None, "once the rows are counted, it is known how long the run takes"
    assert isinstance(updates[0], api.Planned)
    assert [u.name for u in updates if isinstance(u, api.Phase)] == ["preparing data", "training"]
    assert [u.step for u in updates if isinstance(u, api.StepMetrics)] == [1, 2, 3]
    assert capfd.readouterr().err == "counting rows\n", "preparation speaks to the terminal, and nobody else does"


def test_a_run_is_noted_once_when_it_ends_and_its_next_plan_says_what_it_measured(make, job) -> None:
    make(TRAIN.replace("(1, 2, 3)", "range(1, 9)"))
    path = job()
    api.train(path)
    assert api.train(path).outcome == "already_finished"
    ((noted,), wrong) = noted_runs()
    assert (noted.memory, wrong) == (None, None), "no memory was measured"
    chosen = read_plan(RunDirectory(path.parent / "run").plan).best
    assert noted.seconds == pytest.approx(0.1 / chosen.time.step_seconds)
    assert api.plan(path).best.reasons[-1].startswith("1 run like this measured ")


def test_what_is_not_trained_is_told_at_the_key_that_it_is_about(make, job, tmp_path) -> None:
    """What the model's config says is known late: of packing and layout, each at its own line."""
    folder, path = tmp_path / "model", job("layout: {tp: 2}")
    line = 1 + path.read_text().split("\n").index("layout: {tp: 2}")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "intermediate_size": 63}))
    must_refuse(errors.UnsupportedError, rf"job\.yaml:{line}: tp = 2 does not divide", api.train, path)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "model_type": "opt", "ffn_dim": 64}))
    path = job("layout: ddp")
    path.write_text(path.read_text().replace("max_length: 64", "max_length: 64, packing: true"))
    must_refuse(errors.UnsupportedError, r"job\.yaml:2: packing is not trained for opt", api.train, path)


def test_a_finished_run_is_not_trained_again_nor_for_another_job_or_fewer_steps(make, job) -> None:
    run = api.train(read_job(job())).run
    assert read_job(run.job) == read_job(job()), "a job made by a program is written down"
    make("fail('must not run')")
    assert api.train(job()).outcome == "already_finished"
    before = {path: path.read_bytes() for path in run.root.rglob("*") if path.is_file()}
    differs = r"train\.learning_rate = 2e-05, and this job has 0\.001.*set another output_dir"
    with pytest.raises(errors.RunDirectoryError, match=differs):
        api.train(job(), overrides=["train.learning_rate=1e-3"])
    with pytest.raises(
        errors.RunDirectoryError, match=r"has trained 3 steps, and this job asks for 2; raise train\.max"
    ):
        api.train(job(), overrides=["train.max_steps=2"])
    assert {path: path.read_bytes() for path in run.root.rglob("*") if path.is_file()} == before


def test_a_failed_run_goes_on_when_it_is_started_again(make, job) -> None:
    make("fail('the first time')")
    with pytest.raises(errors.WorkerFailedError, match="the first time"):
        api.train(job())
    make(TRAIN)
    result = api.train(job("train: {logging_steps: 2, save_steps: 5}"))
    assert result.outcome == "finished"
    assert read_job(result.run.resolved).train.logging_steps == 2


def test_a_plan_is_obeyed(make, job, tmp_path) -> None:
    api.write_plan(api.plan(job(), overrides=["layout=fsdp", "train.micro_batch_size=2"]), tmp_path / "plan.json")
    chosen = read_plan(api.train(tmp_path / "plan.json").run.plan).best
    assert (chosen.execution.layout.dp_shard, chosen.execution.micro_batch_size) == (2, 2)


@pytest.mark.slow
def test_a_goal_that_leaves_gpus_alone_starts_no_processes_for_them(make, job, monkeypatch) -> None:
    monkeypatch.setattr(probe, "visible_gpus", lambda: GPUS)
    result = api.train(job("goal: fewest-gpus", hardware="4x H100-SXM"))
    assert read_plan(result.run.plan).best.execution.layout.world_size == 1
    assert [path.name for path in result.run.logs.glob("rank_*.log")] == ["rank_0.log"]


@pytest.mark.parametrize("goal", ["fewest-gpus", "cheapest"])
def test_no_goal_leaves_out_ranks_that_were_started_already(goal, make, job, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(probe, "visible_gpus", lambda: GPUS)
    place = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "localhost"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    for rank in (1, 2, 3):  # which would become workers
        other = joined.place_in_group({**place, "RANK": str(rank)})
        waiting = partial(joined.wait_for_rank_0, RunDirectory(tmp_path / "run"), other, say=print)
        threading.Thread(target=waiting, daemon=True).start()
    result = api.train(job(f"goal: {goal}", hardware="4x H100-SXM"))
    assert read_plan(result.run.plan).best.execution.layout.world_size == 4
    assert read_job(result.run.job).goal == goal, "the job is written down as it was asked"


def test_nothing_is_started_or_written_for_a_job_that_does_not_fit(make, job, tmp_path) -> None:
    path, huge = job(), {"hidden_size": 65536, "intermediate_size": 262144, "num_hidden_layers": 100, "head_dim": 128}
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG | huge))
    with pytest.raises(errors.DoesNotFitError) as caught:
        api.train(path)
    assert caught.value.exit_code == 1 and not (tmp_path / "run").exists()


def test_what_does_not_fit_beside_what_others_hold_names_their_process_at_once(make, job, tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    line = "0, GPU-a, NVIDIA H100 80GB HBM3, 81559, 570.1, {free}, Disabled\n"
    nvidia_smi(programs, gpus=line.format(free=300), holders="GPU-a, 1234, 80600, /usr/bin/python\n")
    path = job(hardware="1x H100-SXM")
    with pytest.raises(errors.DoesNotFitError) as caught:
        api.train(path)
    first, second, third = str(caught.value).splitlines()[:3]
    assert (first, caught.value.exit_code) == ("nothing fits on 1x H100-SXM", 1)
    assert second == "GPU 0: 78.9 GiB are held by python (pid 1234); planned for the 0.3 GiB that are free"
    assert third == "it fits where others leave the GPU to it: end what holds its memory, or wait"
    assert not (tmp_path / "run").exists()
    nvidia_smi(programs, gpus=line.format(free=20000), holders="GPU-a, 1234, 60600, /usr/bin/python\n")
    updates: list[api.Update] = []
    plan = read_plan(api.train(path, on_update=updates.append).run.plan)
    assert plan.best.memory.capacity_bytes == 20000 * 1024**2
    assert plan.notes == ["GPU 0: 59.6 GiB are held by python (pid 1234); planned for the 19.5 GiB that are free"]
    assert f"  ! {plan.notes[0]}" in plan_lines(next(u for u in updates if isinstance(u, api.Planned)))


def test_blocks_are_not_to_be_compiled_without_a_compiler(make, job, monkeypatch) -> None:
    monkeypatch.setattr(probe, "visible_gpus", lambda: GPUS)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(probe.shutil, "which", lambda _: None)
    path = job("train: {compile: true}", hardware="4x H100-SXM")
    with pytest.raises(errors.InputError, match=r"need a C compiler.*install gcc, or set train.compile: false"):
        api.train(path)
    monkeypatch.setenv("CC", "/opt/cc")
    assert api.train(path).outcome == "finished"


def test_data_that_cannot_be_prepared_are_said_once_and_a_kill_too(make, job, capfd) -> None:
    make(REFUSING, name="bad_prepare")
    with pytest.raises(api.ReportedError) as caught:
        api.train(job())
    assert caught.value.exit_code == 2
    assert capfd.readouterr().err == "error: rows.jsonl:3: empty\n"
    make("os.kill(os.getpid(), signal.SIGKILL)", name="dying_prepare")
    with pytest.raises(errors.WorkerFailedError, match="data preparation was ended by signal 9"):
        api.train(job())


@pytest.mark.parametrize("program", [REFUSING, "os.kill(os.getpid(), signal.SIGKILL)"])
def test_data_that_are_refused_leave_no_run_directory_behind(program, make, job, tmp_path) -> None:
    make(program, name="bad_prepare")
    nested, before = f"output_dir={tmp_path}/not/there/yet", set(tmp_path.iterdir())
    for verb in (api.train, api.verify):
        said_by(errors.ShardwiseError, verb, job())
    said_by(errors.ShardwiseError, api.train, job(), overrides=[nested])
    assert set(tmp_path.iterdir()) - before <= {tmp_path / "rows.jsonl", tmp_path / "job.yaml"}
    (tmp_path / "run").mkdir()
    said_by(errors.ShardwiseError, api.train, job())
    assert list((tmp_path / "run").iterdir()) == [], "a folder that was there stays, as it was"


def test_data_that_are_refused_take_nothing_from_a_run_that_went_before(make, job, tmp_path) -> None:
    make(TRAIN.replace('outcome("finished")', "rank or fail('no memory')"))  # after its steps
    with pytest.raises(errors.WorkerFailedError, match="no memory"):
        api.train(job())
    before = {path.name for path in (tmp_path / "run").iterdir()}
    make(REFUSING, name="bad_prepare")
    said_by(api.ReportedError, api.train, job())
    assert {path.name for path in (tmp_path / "run").iterdir()} == before
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("loss") == 3


@pytest.mark.parametrize("override", [[], ["data.path=FOLDER/photos"]])
def test_a_path_without_rows_is_named_where_the_user_wrote_it(make, job, tmp_path, capfd, override, monkeypatch):
    monkeypatch.setattr(helpers, "PREPARATION", "shardwise.programs.prepare")
    (tmp_path / "photos").mkdir()
    path = job()
    written = [text.replace("FOLDER", str(tmp_path)) for text in override]
    path.write_text(path.read_text().replace("rows.jsonl", "photos"))
    with pytest.raises(api.ReportedError) as caught:
        api.train(path, overrides=written)
    assert caught.value.exit_code == 2
    place = f"--set {written[0]}" if written else f"{path}:2"
    said = f"error: {place}: data.path: {tmp_path}/photos: is a folder without rows; expected files that end in"
    assert [line.startswith(said) for line in capfd.readouterr().err.splitlines()] == [True]


JOINING = """
import sys
from shardwise import api
from shardwise.errors import DamagedResultError, ShardwiseError
from shardwise.launch.processes import command, helpers
helpers.PREPARATION, command.WORKER = sys.argv[2], "fake_worker"
try:
    done = api.train(sys.argv[1])
    print("came back:", done.outcome)
except api.ReportedError as error:
    sys.exit(error.exit_code)
except ShardwiseError as error:
    print("error:", error)
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize("folder", ["FOLDER/rows.jsonl", "FOLDER/rows.jsonl/below", "/proc/no-such/run"])
@pytest.mark.parametrize("verb", ["train", "joined", "verify", "compare"])
def test_an_output_dir_that_cannot_be_written_is_named_with_its_line(verb, folder, make, job, tmp_path, monkeypatch):
    path, asked = job(), folder.replace("FOLDER", str(tmp_path))
    path.write_text(path.read_text().replace(f"output_dir: {tmp_path / 'run'}", f"output_dir: {asked}"))
    if verb == "joined":
        for name, value in {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("MASTER_ADDR", "localhost")
    with pytest.raises(errors.RunDirectoryError) as caught:
        if verb == "verify":
            api.verify(path, layouts=["ddp"])
        elif verb == "compare":
            api.compare(path, layouts=["ddp"])
        else:
            api.train(path)
    assert str(caught.value).startswith(f"{path}:3: output_dir {asked}")
    assert "cannot be used: " in str(caught.value)


def torchrun(job: Path, preparation: str) -> subprocess.CompletedProcess[str]:
    program = job.with_name("joining.py")
    program.write_text(JOINING)
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(program), str(job), preparation]
    environment = {**os.environ, KIND: "torch"}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(("rank", "whom"), first(0, [(0, "rank 1"), (1, "rank 0")], ci=1))
def test_a_rank_whose_variables_are_left_over_says_within_seconds_for_whom_it_waits(rank, whom, make, job) -> None:
    left_over = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "MASTER_ADDR": "localhost"}
    environment = {**os.environ, **left_over, "MASTER_PORT": "29511", "COLUMNS": "1000"}
    argv, began = [sys.executable, "-m", "shardwise", "train", str(job())], time.monotonic()
    started = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = next(line for line in started.stdout if "waits for" in line)
        assert time.monotonic() - began < 60, "on a busy machine; the wait itself is 5 s"
        assert f"rank {rank} of 2 on " in said
        assert f" waits for {whom} at localhost:29511, and sees no sign of it in " in said
        assert "if RANK and WORLD_SIZE are left over from another start, put `env -u RANK -u WORLD_SIZE " in said
    finally:
        started.terminate()
        assert started.wait(20) != 0
        started.stdout.close()


@pytest.mark.slow
@pytest.mark.dist
def test_under_torchrun_each_rank_becomes_a_worker_after_the_first_has_prepared(make, job, tmp_path) -> None:
    run, done = RunDirectory(tmp_path / "run"), torchrun(job(), "fake_prepare")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("counting rows") == 1
    assert json.loads((run.logs / "outcome.json").read_text())["outcome"] == "finished"
    assert {path.name for path in run.logs.glob("rank_*.pid")} == {"rank_0.pid", "rank_1.pid"}
    assert run.report_json.exists()
    assert done.stdout.count("came back: finished") == 1, "rank 0 is left to say how it went"
    assert torchrun(job(), "no_such_module").returncode == 0, "a finished run is not prepared again"
    assert processes_of(run) == []


@pytest.mark.dist
@pytest.mark.slow
def test_under_torchrun_one_rank_says_why_nothing_can_start(make, job) -> None:
    make(REFUSING, name="bad_prepare")
    done = torchrun(job(), "bad_prepare")
    assert done.returncode != 0
    assert (done.stdout + done.stderr).count("rows.jsonl:3: empty") == 1
    done = torchrun(job("learning_rate: 1"), "fake_prepare")
    assert done.returncode != 0
    assert (done.stdout + done.stderr).count("it belongs under train:") == 1


def test_a_mistake_that_only_another_rank_sees_is_said_by_that_rank(job, monkeypatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "h"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(joined, "STOPPED_WITHIN_SECONDS", 0.0)
    must_refuse(errors.InputError, "it belongs under train:", api.train, job("learning_rate: 1"))
