from shardwise.launch.follow import Follower, Phase, StepMetrics
from shardwise.spec.run import RunDirectory, announce, append_line


def test_what_stood_in_the_files_before_is_not_told_again(run: RunDirectory) -> None:
    announce(run, "training", total_steps=10)
    append_line(run.metrics, {"step": 1, "loss": 3.0})
    follower = Follower(run)
    assert follower.updates() == []
    announce(run, "training", total_steps=10, first_step=2)
    append_line(run.metrics, {"step": 2, "loss": 2.0})
    assert follower.updates() == [
        Phase(name="training", total_steps=10, detail={"first_step": 2}),
        StepMetrics(step=2, loss=2.0),
    ]
    assert follower.updates() == []


def test_a_line_that_is_still_being_written_is_told_when_it_is_whole(run: RunDirectory) -> None:
    follower = Follower(run)
    with run.metrics.open("a") as file:
        file.write('{"step": 1, "lo')
        file.flush()
        assert follower.updates() == []
        file.write('ss": 2.5}\n')
    assert follower.updates() == [StepMetrics(step=1, loss=2.5)]


def test_a_file_that_a_resumed_trainer_cut_off_is_followed_from_its_new_end(run: RunDirectory) -> None:
    for step in range(1, 6):
        append_line(run.metrics, {"step": step})
    follower = Follower(run)
    kept = run.metrics.read_text().splitlines(keepends=True)[:2]
    run.metrics.write_text("".join(kept))
    assert follower.updates() == []
    append_line(run.metrics, {"step": 3})
    assert follower.updates() == [StepMetrics(step=3)]


def test_lines_that_are_no_records_are_passed_over(run: RunDirectory) -> None:
    follower = Follower(run)
    run.metrics.write_text('nonsense\n[1]\n{"loss": 1}\n{"step": true}\n{"step": 4, "loss": null, "epoch": "one"}\n')
    run.events.write_text('{"time": 1}\n{"phase": "loading", "total_steps": "many"}\n')
    assert follower.updates() == [Phase(name="loading", total_steps=None, detail={}), StepMetrics(step=4)]
