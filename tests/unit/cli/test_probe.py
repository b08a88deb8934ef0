"""What `probe` measures, and that plans for this machine use it."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shardwise import api
from shardwise.api.plans import probing
from shardwise.catalog.devices import cpu_model, usable_cores
from shardwise.catalog.gpus import find_gpu, parse_hardware
from shardwise.catalog.rates import VERSION, Rates, hardware_file, read_rates, with_rates, write_rates
from shardwise.cli.machine import lines
from shardwise.cli.main import main
from shardwise.errors import HardwareError, InputError
from shardwise.plan.rates.links import RankGroup, copy_seconds
from shardwise.plan.time.step import host_seconds
from shardwise.spec.cluster import Cluster, Node
from tests.refusals import said_by
from tests.unit.plan.asking import Layout, execution, job, shape, work

MESSAGES = {
    "all_reduce": {"64": 0.4e-3, "262144": 0.5e-3, "16777216": 12e-3},
    "gather": {"64": 0.3e-3, "262144": 0.3e-3, "16777216": 14e-3},
    "scatter": {"64": 0.3e-3, "262144": 0.6e-3, "16777216": 18e-3},
    "exchange": {"64": 0.4e-3, "262144": 0.5e-3, "16777216": 20e-3},
    "message": {"64": 0.1e-3, "262144": 0.2e-3, "16777216": 5e-3},
}

FORWARD, BACKWARD = {"1000000": 1e-4, "1000000000": 0.03}, {"1000000": 4e-4, "1000000000": 0.05}


def _rates(**differs: object) -> Rates:
    machine = {"version": VERSION, "processor": cpu_model(), "cores": usable_cores(), "gpu": "", "ranks": 2}
    products = {"float32": {"1024x1024x1024": 1e11, "512x256x256": 2e11}, "bfloat16": {"1024x1024x1024": 4e11}}
    attention = {"float32": {"forward": FORWARD, "backward": BACKWARD}}
    computed = {"product_flops": products, "attention_seconds": attention, "operator_seconds": 3e-6}
    moved = {"memory_bytes_per_second": 2e10, "disk_bytes_per_second": 1e9, "host_to_device_bytes_per_second": 0.0}
    return Rates(**machine | computed | moved | {"message_seconds": MESSAGES, "unit_seconds": 5e-3} | differs)


def test_cpu_processes_have_the_rates_that_were_measured_shared_between_them() -> None:
    nominal = parse_hardware("cpu:4")
    write_rates(_rates())
    cluster = parse_hardware("cpu:4")
    gpu = cluster.gpu
    assert gpu.measured and not nominal.gpu.measured
    assert gpu.dense_flops == {"float32": 1e11, "bfloat16": 2e11}, "two processes had twice as many cores each"
    assert (gpu.memory_bytes_per_second, gpu.operator_seconds, gpu.unit_seconds) == (1e10, 3e-6, 5e-3)
    halved = {"forward": {"1000000": 2e-4, "1000000000": 0.06}, "backward": {"1000000": 8e-4, "1000000000": 0.1}}
    assert gpu.attention_seconds == {"float32": halved}
    assert gpu.memory_bytes == pytest.approx(nominal.gpu.memory_bytes, rel=0.2)
    pair = RankGroup(size=2, link=cluster.node.link)
    for name, by_size in MESSAGES.items():
        for size, seconds in by_size.items():
            assert getattr(pair, name)(int(size)) == pytest.approx(seconds)
    assert 0.5e-3 < pair.all_reduce(2**23) < 12e-3, "between two that were measured"
    assert pair.all_reduce(2**26) == pytest.approx(4 * 12e-3, rel=0.05), "at the rate of the largest"
    four = RankGroup(size=4, link=cluster.node.link)
    assert four.gather(64) == pytest.approx(3 * 0.3e-3, rel=0.01), "a hop each"
    assert four.gather(2**24) > 1.4 * pair.gather(2**24), "three quarters of all bytes pass a rank, not half"


def test_steps_slow_the_forecast_by_what_they_take_and_one_process_has_the_cores_left() -> None:
    before, peak = _seconds("{}", "hardware=cpu:1"), parse_hardware("cpu:1").gpu.dense_flops
    assert _seconds("{}", "hardware=cpu:1", step_over_rates={"float32": 1.5}) == pytest.approx(1.5 * before)
    assert parse_hardware("cpu:1").gpu.dense_flops == peak
    kept = "train.gradient_checkpointing=none"  # whatever memory is free while this runs
    alone, beside = (_seconds("{}", kept, f"hardware=cpu:{processes}") for processes in (1, 2))
    assert beside == pytest.approx(alone)


def test_plans_for_this_machine_use_what_was_measured() -> None:
    asked = ["model=SmolLM2-135M", "method=full", "layout=ddp", "train.micro_batch_size=4", "hardware=cpu:2"]
    before = api.plan(overrides=asked)
    write_rates(_rates())
    after = api.plan(overrides=asked)
    assert after.best.time.step_seconds < before.best.time.step_seconds / 2
    assert any("nominal" in reason for reason in before.best.reasons)
    assert not any("nominal" in reason for reason in after.best.reasons)
    assert api.plan(overrides=[*asked[:-1], "hardware=probed"]).hardware["node"]["gpu"]["measured"] is True


@pytest.mark.parametrize("differs", [{"cores": 10**6}, {"processor": "another"}, {"gpu": "H100-SXM"}, {"version": 0}])
def test_what_was_measured_elsewhere_is_not_used(differs) -> None:
    write_rates(_rates(**differs))
    assert read_rates() is None
    assert not parse_hardware("cpu:2").gpu.measured


@pytest.mark.parametrize("content", ["", "[]", '{"version": 1}', '{"version": 1, "ranks": "two"}'])
def test_a_damaged_hardware_file_is_as_if_it_were_not_there(content) -> None:
    hardware_file().parent.mkdir(parents=True)
    hardware_file().write_text(content)
    assert read_rates() is None


def test_messages_of_cpu_processes_take_time_from_the_computation() -> None:
    """Gloo works on the core that computes, so that nothing is hidden behind a backward."""
    seconds: list[float] = []
    for times in (1, 3, 5):
        slower = {name: {size: times * one for size, one in by.items()} for name, by in MESSAGES.items()}
        seconds.append(_seconds("fsdp", "train.micro_batch_size=4", message_seconds=slower))
    assert seconds[1] - seconds[0] == pytest.approx(seconds[2] - seconds[1])
    assert seconds[1] > 1.05 * seconds[0]


def _seconds(layout: str, *others: str, **measured: object) -> float:
    asked = ["model=SmolLM2-135M", "method=full", f"layout={layout}", "train.micro_batch_size=1", "hardware=cpu:2"]
    write_rates(_rates(**measured))
    best = api.plan(overrides=[*asked, *([] if others else ["train.global_batch_size=2"]), *others]).best
    return best.time.step_seconds


@pytest.mark.parametrize(("layout", "units"), [("ddp", 0), ("zero1", 0), ("zero2", 31), ("fsdp", 31)])
def test_fsdp_takes_what_was_measured_of_a_unit_for_each_block_and_both_ends(layout, units) -> None:
    """SmolLM2-135M has 30 blocks; what is outside them is tied, and one unit."""
    found = _seconds(layout, unit_seconds=20e-3) - _seconds(layout, unit_seconds=10e-3)
    assert found == pytest.approx(units * 10e-3)


def test_messages_of_an_exchange_and_of_each_step_are_counted() -> None:
    dear = MESSAGES | {"exchange": {size: 2 * seconds for size, seconds in MESSAGES["exchange"].items()}}
    once = _seconds("zero1")
    pair = RankGroup(size=2, link=parse_hardware("cpu:2").node.link)
    assert _seconds("zero1", message_seconds=dear) - once == pytest.approx(pair.exchange(4 * 134_515_008), rel=0.01)
    assert _seconds("fsdp", message_seconds=dear) == _seconds("fsdp")
    write_rates(_rates())
    assert host_seconds(work(job(), shape(), execution(Layout(tp=2)), "cpu:2")) == pytest.approx(0.8e-3, rel=0.01)
    assert host_seconds(work(job(), shape(), execution(), "cpu:1")) == 0


def test_gpus_keep_the_peak_that_mfu_is_counted_by() -> None:
    known = find_gpu("H100-SXM")
    rates = {"product_flops": {"bfloat16": {"8192x4096x4096": 6.2e14}}, "host_to_device_bytes_per_second": 4e10}
    write_rates(_rates(gpu=known.gpu.name, **rates))
    cluster = with_rates(Cluster(node=Node(gpu=known.gpu, num_gpus=2, link=known.link)))
    gpu = cluster.gpu
    assert gpu.dense_flops == known.gpu.dense_flops and gpu.product_flops == {"bfloat16": 6.2e14}
    assert copy_seconds(cluster, 4e10) == 1.0


def test_hardware_probed_needs_a_probe(capsys) -> None:
    with pytest.raises(HardwareError, match="this machine has not been; run `shardwise probe` first"):
        api.plan(overrides=["model=SmolLM2-135M", "hardware=probed"])
    for number in (0, 999):
        with pytest.raises(InputError, match=rf"--processes is {number}, and this machine has .+; expected 1 to \d"):
            api.probe(processes=number)


def test_a_probe_that_is_interrupted_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_program: str, asked: dict[str, Any], **_options: object) -> str:
        (Path(asked["folder"]) / "file_0").touch()
        raise KeyboardInterrupt

    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr("shardwise.api.plans.probing.run_program", interrupted)
    said_by(KeyboardInterrupt, api.probe, processes=1)
    assert list(here.iterdir()) == []


def test_a_folder_that_a_probe_cannot_write_into_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    def refused(**_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryDirectory", refused)
    refusal = said_by(InputError, api.probe, processes=1)
    assert refusal == f"{tmp_path} cannot be written: Permission denied; start the probe in another folder"
    little = shutil.disk_usage(tmp_path)._replace(free=100 * 2**20)
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: little)
    assert said_by(InputError, api.probe, processes=1) == (
        f"{tmp_path} has 100 MiB of disk free, and a probe writes 64.0 MiB; free some, or start it in another folder"
    )


@pytest.mark.parametrize(("share", "said"), [(0.97, False), (0.43, True)])
def test_a_probe_says_that_other_programs_were_at_work(share, said, tmp_path, monkeypatch, capsys) -> None:
    measured = _rates(share_of_cores=share)
    monkeypatch.setattr(api, "probe", lambda **_options: (measured, tmp_path))
    said_by(SystemExit, main, ["probe"])
    had = "other programs were at work: the probe had 43 % of its cores, so that these rates are too low; run it again "
    assert (f"{had}when they have ended" in capsys.readouterr().out) is said


#: The program with less of everything, in its ranks too, which import what started them.
QUICK = """
import runpy
from shardwise.train.measuring import probe
probe.SECONDS, probe.SAMPLE_SECONDS, probe.TURNS, probe.STEPS, probe.MESSAGES = 0.04, 0.0, 1, 3, (2**6, 2**22)
probe.SHAPES, probe.LENGTHS = {"cpu": ((256, 256, 256), (128, 128, 128), (256, 256, 16))}, {"cpu": (64, 128, 256)}
if __name__ == "__main__":
    runpy.run_module("shardwise.programs.probe", run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.timed)])
def test_this_machine_is_probed(quick, capsys, monkeypatch, tmp_path) -> None:
    if quick:
        (tmp_path / "quick_probe.py").write_text(QUICK)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        quickly = partial(probing.run_program, "quick_probe")
        monkeypatch.setattr(probing, "run_program", lambda _, asked, **how: quickly(asked, **how))
    with pytest.raises(SystemExit) as ended:
        main(["probe", "--processes", "2", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert not ended.value.code
    rates = read_rates(gpu=found["gpu"])
    assert rates.to_json() == found
    # A quick probe on a busy machine measures anything but nothing.
    least, most = (0.0, float("inf")) if quick else (0.3, 30.0)
    assert rates.best_flops()["float32"] > least * 1e9 and rates.alone_over_rates > least
    assert all(least < over < most for over in rates.step_over_rates.values())
    assert rates.gpu or 0 <= rates.unit_seconds < 1
    assert 0 < rates.share_of_cores < 1.1
    for ways in rates.attention_seconds.values():
        assert all(0 < seconds < most / 3 for by_flops in ways.values() for seconds in by_flops.values())
    assert all(name and figure for name, figure in lines(rates))
    for by_size in rates.message_seconds.values():
        small, *_, large = by_size.values()
        assert 0 < small < (most if quick else large)
        assert large > 0
