"""Runs on several machines equal one process, and a lost machine is named on every other."""

import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from shardwise import api
from shardwise.launch.processes.helpers import weights_difference
from shardwise.spec.plan.file import read_plan
from shardwise.spec.run import RunDirectory, read_lines, read_metrics
from tests.nodes.conftest import STALL_SECONDS, Cluster, Started, verdict, wait_for_steps
from tests.nodes.lab import add_network

#: Of losses and weights, relative to those of one process: the parity contract.
TOLERANCE = 1e-5

STEPS = 6

#: name -> layout, and how many processes.
LAYOUTS: dict[str, tuple[Any, int]] = {name: (name, 2) for name in ("ddp", "fsdp", "pp")}
LAYOUTS["hsdp"] = ({"dp_replicate": 2, "dp_shard": 2}, 4)

#: What a run is told apart by from one that takes a second.
LONG: dict[str, Any] = {"max_steps": 100_000, "save_steps": 50, "lr_scheduler_type": "constant", "warmup_steps": 0}


@pytest.fixture
def alone(job_file) -> RunDirectory:
    """The same job on one process."""
    path, run = job_file("alone", train={"max_steps": STEPS, "optimizer": "sgd"}, hardware="cpu:1")
    api.train(path)
    return run


def assert_equal(found: RunDirectory, expected: RunDirectory) -> None:
    ours, theirs = read_metrics(found), read_metrics(expected)
    assert [record["step"] for record in ours] == [record["step"] for record in theirs]
    for name in ("loss", "grad_norm"):
        assert [record[name] for record in ours] == pytest.approx([r[name] for r in theirs], rel=TOLERANCE), name
    difference = weights_difference(found.final, expected.final, tolerance=TOLERANCE)
    assert difference["first"] is None, difference


def finished(started: Started) -> None:
    began = time.monotonic()
    assert set(started.codes(200)) == {0}, started.everything()
    print(f"\n  finished in {time.monotonic() - began:.1f} s")


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(("count", "how"), [(2, "train"), (2, "torchrun"), (4, "train")])
def test_a_layout_over_machines_equals_one_process(count, how, name, four: Cluster, job_file, alone) -> None:
    layout, processes = LAYOUTS[name]
    hardware = f"cpu:{max(count, processes)}"
    path, run = job_file(train={"max_steps": STEPS, "optimizer": "sgd"}, layout=layout, hardware=hardware)
    nodes = four.part(count)
    if how == "torchrun":  # without a word on interfaces
        started = nodes.torchrun(path, run, processes=processes // 2, exported=name in ("ddp", "hsdp"))
    else:
        started = nodes.train(path, run)
    finished(started)
    assert_equal(run, alone)
    if how == "train":
        assert "ranks talk over eth0, the interface of the route to 10.77.0.1" in run.rank_log(0).read_text()
        assert all(f"finished after {STEPS} steps" in started.said(index) for index in range(count))


@pytest.mark.parametrize("how", ["train", "torchrun"])
def test_an_interface_that_the_user_names_is_taken(how, two: Cluster, job_file) -> None:
    add_network(two.nodes)
    path, run = job_file(train={"max_steps": 20}, layout="ddp", hardware="cpu:2")
    start = two.torchrun if how == "torchrun" else two.train
    finished(start(path, run, GLOO_SOCKET_IFNAME="eth1"))
    assert "ranks talk over" not in run.rank_log(0).read_text()
    route, named = (two.nodes[0].sent_bytes(device) for device in ("eth0", "eth1"))
    gradients = 20 * 4 * read_plan(run.plan).model["num_trainable_parameters"]
    print(f"\n  {route:,} bytes over the route to node 0, {named:,} over the named interface")
    assert route < gradients / 10 < gradients / 2 < named


@pytest.mark.parametrize("lost", [1, 0])
def test_a_machine_that_dies_is_named_on_the_other_and_the_same_command_goes_on(lost, two, job_file) -> None:
    path, run = job_file(train=LONG, layout="fsdp", hardware="cpu:2")
    started = two.train(path, run)
    wait_for_steps(started, 60)
    began = time.monotonic()
    two.nodes[lost].kill()
    assert started.codes(60, without=[lost]) == [1], started.everything()
    assert verdict(f"node {lost} killed", began) <= 15
    left = started.said(1 - lost)
    name = "node 1 (n1)" if lost else "node 0 (n0)"
    assert f"error: {name} is gone: its processes were ended, or the machine went down" in left, started.everything()
    (step, folder), *_ = run.checkpoints()
    assert f"the same command goes on from {folder}" in left
    again = two.train(path, run, "--set", f"train.max_steps={step + 5}")
    finished(again)
    assert read_metrics(run)[-1]["step"] == step + 5
    assert f"first step {step + 1}" in again.said(0)


@pytest.mark.parametrize("how", ["train", "torchrun"])
def test_a_machine_of_several_that_dies_ends_the_others(how, four, job_file) -> None:
    count = 4 if how == "train" else 2
    path, run = job_file(train=LONG, layout="ddp", hardware=f"cpu:{count}")
    started = getattr(four.part(count), how)(path, run)
    wait_for_steps(started, 5)
    began = time.monotonic()
    four.nodes[1].kill()
    codes = started.codes(100, without=[1])
    seconds = verdict(f"node 1 of {count} killed, {how}", began)
    assert {*codes} == {1}, started.everything()
    named = "error: node 1 (n1) is gone" if how == "train" else "error: rank 0 failed while training"
    for index in (0, 2, 3)[: 3 if how == "train" else 1]:
        assert named in started.said(index), started.everything()
    assert how == "torchrun" or seconds <= 15


def test_torchrun_goes_on_in_a_later_start_that_reads_nothing_of_an_earlier_one(two, job_file) -> None:
    train = {"max_steps": STEPS, "save_steps": 2, "save_total_limit": 9}
    path, run = job_file(train=train, layout="fsdp", hardware="cpu:2")
    mistaken = two.torchrun(path, run, "--set", "hardware=cpu:4", exported=True)
    assert 0 not in mistaken.codes(100), mistaken.everything()
    finished(two.torchrun(path, run, exported=True))
    longer = two.torchrun(path, run, "--set", f"train.max_steps={STEPS + 2}", exported=True)
    finished(longer)
    assert f"first step {STEPS + 1}" in longer.said(0)
    began = time.monotonic()
    finished(two.torchrun(path, run, "--set", f"train.max_steps={STEPS + 2}", exported=True))
    verdict("torchrun: finished already", began)
    assert read_metrics(run)[-1]["step"] == STEPS + 2


def test_a_run_that_loses_a_machine_for_good_goes_on_with_what_is_left(two, job_file) -> None:
    """The job leaves the hardware open: each machine has what the box has."""
    train = {"max_steps": 30, "save_steps": 4, "optimizer": "sgd", "lr_scheduler_type": "constant", "warmup_steps": 0}
    path, run = job_file(train=train)
    whole, alone = job_file("alone", train=train, hardware="cpu:1")
    for node in two.nodes:
        node.slow(rate="20mbit", delay="5ms")
    started = two.train(path, run)
    wait_for_steps(started, 6)
    two.nodes[1].kill()
    assert started.codes(60, without=[1]) == [1], started.everything()
    left = two.part(1)
    refused = left.train(path, run, "--no-replan")
    assert refused.codes(60) == [2], refused.everything()
    again = left.train(path, run)
    finished(again)
    first, second = read_lines(run.starts)
    was, now, step = first["world_size"], second["world_size"], second["first_step"] - 1
    assert was == 2 * now
    came = f"the run in {run.root} was planned for cpu:{was} and comes back with cpu:{now}"
    assert f"error: {came}, and --no-replan is set" in refused.said(0)
    assert f"{came}: it was planned again" in again.said(0)
    assert f"goes on from checkpoint-{step} with the same global batch and the same samples" in again.said(0)
    api.train(whole)
    assert_equal(run, alone)


@pytest.mark.parametrize("how", ["train", "torchrun"])
def test_a_cable_that_is_cut_for_good_is_named_on_both_sides(how, two, job_file) -> None:
    """When torchrun itself ends on the other node, without its store, is not ours to say."""
    path, run = job_file(train=LONG, layout="fsdp", hardware="cpu:2")
    started = getattr(two, how)(path, run)
    wait_for_steps(started, 60)
    began = time.monotonic()
    two.nodes[1].cut()
    assert started.codes(120, without=[1] if how == "torchrun" else []) == ([1] if how == "torchrun" else [1, 1])
    assert verdict(f"cable cut for good, {how}", began) <= STALL_SECONDS + 5
    stuck = f"nothing has moved for {STALL_SECONDS:g} s: ranks wait for each other: ranks 0-1 wait"
    heard = "error: nothing has been heard from node {} (n{}) for"
    ours, theirs = (heard.format(1, 1), heard.format(0, 0)), (stuck, f"error: rank 1 on n1: {stuck}")
    for index, words in enumerate(ours if how == "train" else theirs):
        assert words in started.said(index), started.everything()
        assert how == "torchrun" or "the network between is cut, or the machine hangs" in started.said(index)


def test_a_cable_that_is_cut_for_20_seconds_only_holds_the_run_up(two, job_file) -> None:
    path, run = job_file(train=LONG, layout="fsdp", hardware="cpu:2")
    started = two.train(path, run, SHARDWISE_STALL_SECONDS="90")
    wait_for_steps(started, 60)
    began = time.monotonic()
    two.nodes[1].cut()
    time.sleep(20)
    two.nodes[1].mend()
    wait_for_steps(started, len(read_metrics(run)) + 20)
    verdict("cable cut for 20 s, until the run went on", began)
    started.processes[0].terminate()
    assert started.codes(60) == [143, 143], started.everything()
    assert all("by SIGTERM; the same command goes on from" in started.said(index) for index in (0, 1))


def test_a_slow_link_only_slows(two, job_file, alone) -> None:
    path, run = job_file(train={"max_steps": STEPS, "optimizer": "sgd"}, layout="fsdp", hardware="cpu:2")
    how = {node.slow(rate="4mbit", delay="20ms") for node in two.nodes}
    finished(two.train(path, run))
    steps, without = (median(one["step_seconds"] for one in read_metrics(each)) for each in (run, alone))
    print(f"\n  {how.pop()}: {steps:.2f} s a step, and {without:.2f} s on one process")
    assert_equal(run, alone)


@pytest.mark.parametrize(("how", "code"), [("torchrun", 1), ("train", 2)])
def test_a_run_directory_that_is_not_shared_is_said_on_both(how, code, two, job_file) -> None:
    path, run = job_file(train={"max_steps": 2}, hardware="cpu:2")
    two.nodes[1].hide(run.root)
    began = time.monotonic()
    started = getattr(two, how)(path, run)
    assert started.codes(200) == [code, code], started.everything()
    verdict(f"run directory not shared, {how}", began)
    for index, other in ((0, 1), (1, 0)):
        said = started.said(index)
        assert "output_dir must lie on a disk that all nodes share" in said, started.everything()
        if how == "train":
            assert "node 1 (n1) does not see the run directory" in said
        else:
            assert f"rank {index} of 2 on n{index} waits for rank {other} at n0:" in said
            assert f"and sees no sign of it in {run.logs} after 120 s" in said
    assert how == "torchrun" or list(run.root.iterdir()) == [], "a start that is refused leaves nothing behind"


@pytest.mark.parametrize(("how", "code"), [("torchrun", 1), ("train", 2)])
def test_a_cache_that_is_not_shared_is_said_on_both(how, code, two, job_file, tmp_path: Path) -> None:
    (path, run), cache = job_file(train={"max_steps": 2}, hardware="cpu:2"), tmp_path / "cache"
    two.nodes[1].hide(cache)
    began = time.monotonic()
    started = getattr(two, how)(path, run, SHARDWISE_CACHE=str(cache))
    assert started.codes(100) == [code, code], started.everything()
    verdict(f"cache not shared, {how}", began)
    said = "is not there on n1; run shardwise train again to prepare it, and on several nodes set SHARDWISE_CACHE to a"
    assert all(said in started.said(index) for index in (0, 1)), started.everything()
