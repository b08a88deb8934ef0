"""`compare` around its runs: where they lie, what is gone on with, and what is refused."""

import json

import pytest

from shardwise import api
from shardwise.errors import InputError, RunDirectoryError
from shardwise.report.versus import Turns
from tests.marks import first

#: ddp takes half as long as one process.
TIMED = """
listen()
size = int(os.environ["WORLD_SIZE"])
if rank == 0:
    for step in (1, 2, 3):
        figures = {"loss": 4.0 - step, "tokens": 100, "gpu_utilization_by_rank": [0.5] * size}
        append_line(run.metrics, {"step": step, "step_seconds": 1.0 / size, **figures})
    write_json(run.final / "manifest.json", {"files": {}})
outcome("finished")
"""


def test_the_layouts_are_run_and_put_side_by_side(make, job, tmp_path) -> None:
    make(TIMED, name="timed_worker")
    found = api.compare(job(), layouts=["single", "mp", "tp-3"], steps=3)
    runs = [(one.layout, one.processes, one.strategy, one.turns) for one in found.contenders]
    assert runs == [("mp-2", 2, "mp", Turns(stages=2, because="schedule")), ("single-1", 1, "single", None)]
    assert found.sentence == "mp-2 is the fastest: 0.50 s per step, 2.00 times as fast as single-1"
    assert "mp-2: one of its 2 stages works at a time" in found.notes[0]
    assert [rank.gpu_utilization for rank in found.contenders[0].ranks] == [0.5, 0.5]
    assert found.contenders[0].final_loss == 1.0
    assert found.contenders[0].figure("step time").forecast is not None
    assert [layout for layout, _ in found.unable] == ["tp-3"]
    folder = tmp_path / "run" / "compare"
    assert {path.name for path in folder.iterdir()} == {"single", "mp", "compare.json", "compare.html"}
    assert json.loads((folder / "compare.json").read_text())["sentence"] == found.sentence
    assert "One step of mp-2, as forecast" in (folder / "compare.html").read_text()
    make("fail('must not run')", name="timed_worker")
    assert api.compare(job(), layouts=["mp"], steps=3).contenders[0].step_seconds == 0.5
    (folder / "mp").rename(folder / "ddp")
    with pytest.raises(RunDirectoryError, match="holds a run on cpu:2, and this is ddp-4"):
        api.compare(job(), layouts=["fsdp", "ddp-4"], steps=3)
    assert not (folder / "fsdp").exists(), "it is refused before any other is run"


@pytest.mark.parametrize("end", first(0, ['fail("the shard is empty")', "os.kill(os.getpid(), signal.SIGKILL)"], ci=2))
def test_a_layout_whose_worker_fails_is_listed_with_the_cause_and_the_others_stand(end, make, job, tmp_path) -> None:
    failing = f'if run.root.name == "fsdp":\n    if rank == 1:\n        {end}\n    time.sleep(600)  # in a collective\n'
    make(failing + TIMED, name="timed_worker")
    found = api.compare(job(), layouts=["fsdp", "ddp"], steps=3)
    assert [one.layout for one in found.contenders] == ["ddp-2"]
    (lost,) = found.failed
    assert (lost.layout, lost.run) == ("fsdp-2", str(tmp_path / "run" / "compare" / "fsdp"))
    cause = "was ended by signal 9 (SIGKILL)" if "SIGKILL" in end else "failed while training (step 17)"
    assert lost.reason.startswith(f"rank 1 {cause}")
    assert found.sentence == "ddp-2 is the fastest: 0.50 s per step; fsdp-2 failed"
    written = json.loads((tmp_path / "run" / "compare" / "compare.json").read_text())
    assert [one["layout"] for one in written["failed"]] == ["fsdp-2"]
    assert cause in (tmp_path / "run" / "compare" / "compare.html").read_text()
    alone = api.compare(job(), layouts=["fsdp"], steps=3)
    assert (alone.contenders, [one.layout for one in alone.failed]) == ((), ["fsdp-2"])


@pytest.mark.slow
def test_a_layout_that_a_worker_refuses_is_listed_and_the_others_stand(make, job) -> None:
    refusing = 'if run.root.name == "fsdp":\n    fail("use ddp", input_error=True, error="UnsupportedError")\n'
    make(refusing + TIMED, name="timed_worker")
    found = api.compare(job(), layouts=["fsdp", "ddp"], steps=3)
    assert [one.layout for one in found.contenders] == ["ddp-2"]
    assert found.unable == (("fsdp-2", "use ddp"),)
    with pytest.raises(InputError, match="fsdp-2: use ddp\nthere is nothing to compare"):
        api.compare(job(), layouts=["fsdp"], steps=3)


def test_what_cannot_be_compared_is_bad_input_with_the_processors_that_would_do(job) -> None:
    for layouts, steps, said in (([], 1, "name"), (["ddp"], 0, "at least 1 step"), (["tp-3"], 1, "does not divide")):
        with pytest.raises(InputError, match=said):
            api.compare(job(), layouts=layouts, steps=steps)
    with pytest.raises(InputError, match=r"write --set hardware=cpu:16 for as many processors$"):
        api.compare(job(), layouts=["ddp-16"])
    with pytest.raises(InputError, match=r"job-12: tp = 3 does not divide .*; or use fsdp") as it:
        api.compare(job("layout: {tp: 3, dp_shard: 4}"), layouts=["tp-6", "job"])
    assert str(it.value).endswith("there is nothing to compare; write --layouts ddp,fsdp")
    streamed = job("train: {offload: parameters}")
    with pytest.raises(InputError, match=r"zero1-8: offload parameters .*\n.*\n.*write --set hardware=cpu:16 "):
        api.compare(streamed, layouts=["zero1-8", "fsdp-16"])
