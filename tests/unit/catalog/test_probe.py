"""What this machine is, read without torch."""

import json
import os

import pytest

from shardwise.catalog.devices import MAX_PROCESSES, NOMINAL_FLOPS, holders_of, system_memory, usable_cores
from shardwise.catalog.gpus import find_gpu, reserved_bytes
from shardwise.catalog.probe import LIBRARIES, machine_facts, this_machine
from shardwise.errors import HardwareError
from shardwise.units import GIB, MIB
from tests.dist.worlds import said_by
from tests.refusals import must_refuse
from tests.unit.fakes import nvidia_smi

TWO_H200 = (
    "0, GPU-aaa, NVIDIA H200, 143771, 570.1, 143200, Disabled\n"
    "1, GPU-bbb, NVIDIA H200, 143000, 570.1, 142400, Disabled\n"
)
H100 = "{n}, GPU-{n}, NVIDIA H100 80GB HBM3, 81559, 570.1, {free}, Disabled\n"
CUT = "0, GPU-aaa, NVIDIA A100-SXM4-40GB, 40960, 570.1, 40500, Enabled\n"
SLICES = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaa)
  MIG 3g.20gb     Device  0: (UUID: MIG-111)
  MIG 1g.5gb      Device  1: (UUID: MIG-222)
"""


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A machine whose nvidia-smi answers what the test says; returns the setter."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("SHARDWISE_CACHE", str(tmp_path))

    def prints(gpus, code=0, **answers):
        nvidia_smi(folder, gpus=gpus, code=code, **answers)

    prints("", code=9)
    return prints


@pytest.mark.parametrize(("visible", "count"), [("1", 1), ("GPU-bbb,0", 2), ("0,7,1", 1), ("", None), ("-1", None)])
def test_hidden_gpus_do_not_count(driver, monkeypatch, visible, count):
    driver(TWO_H200)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert this_machine().name == (f"{count}x H200" if count else f"cpu:{min(usable_cores(), MAX_PROCESSES)}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert this_machine().gpu.memory_bytes == 143000 * MIB  # the smallest


def test_gpus_of_different_kinds_are_a_sentence(driver):
    driver(TWO_H200 + "2, GPU-ccc, NVIDIA L4, 23034, 570.1, 22900, [N/A]\n")
    must_refuse(HardwareError, "CUDA_VISIBLE_DEVICES", this_machine)


def test_what_others_hold_of_the_gpus_that_a_job_takes_is_named_and_planned_around(driver) -> None:
    gpus = H100.format(n=0, free=81000) + H100.format(n=1, free=29800)
    driver(gpus, holders="GPU-1, 1234, 51200, /usr/bin/python\nGPU-zzz, 9, 70000, other\n")
    assert this_machine(used=1).notes == ()
    assert this_machine(used=1).gpu.usable_bytes == find_gpu("H100-SXM").gpu.usable_bytes
    cluster = this_machine()
    assert (cluster.gpu.memory_bytes, cluster.gpu.usable_bytes) == (81559 * MIB, 29800 * MIB)
    assert cluster.notes == ("GPU 1: 50.1 GiB are held by python (pid 1234); planned for the 29.1 GiB that are free",)
    driver(gpus)
    assert "GPU 1: 50.1 GiB are held by processes that the driver does not name, such as" in this_machine().notes[0]
    lines = [f"GPU-aaa, {pid}, {mib}, /opt/a{pid}" for pid, mib in ((1, 1024), (2, 4096), (3, 2048), (4, 512), (5, 1))]
    driver("", holders="\n".join([*lines, "GPU-aaa, [N/A], 1, x"]))
    said = "a3 (pid 3, 2.0 GiB), a1 (pid 1, 1.0 GiB), a4 (pid 4, 0.5 GiB) and 1 more"
    assert holders_of("GPU-aaa", without=2) == said


def test_an_unknown_gpu_is_trained_on_with_the_memory_that_the_driver_reports(driver):
    driver("0, GPU-a, NVIDIA Z9000 Max, 49140, 1, 48700, [N/A]\n" * 2)
    cluster = this_machine()
    assert cluster.name == "2x Z9000 Max"
    assert cluster.gpu.memory_bytes == 49140 * MIB
    assert cluster.gpu.usable_bytes == 49140 * MIB - reserved_bytes(49140 * MIB)
    assert cluster.gpu.usd_per_hour is None
    assert cluster.notes == (
        "the GPU Z9000 Max is not in the catalogue: its memory is what the driver reports, and its rates are not "
        "known; times are counted with those of an A100 and may be far off, and MFU is not measured",
    )


def test_visible_devices_that_are_not_here_are_a_sentence_and_no_run_on_processors(driver, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    driver(H100.format(n=0, free=81000))
    assert said_by(HardwareError, this_machine) == (
        "CUDA_VISIBLE_DEVICES is '7', which is none of the GPUs that nvidia-smi lists (0 (NVIDIA H100 80GB HBM3, "
        "GPU-0)); name one of them, or train on processors with CUDA_VISIBLE_DEVICES= (set, and empty)"
    )
    assert machine_facts()["gpus"] == []
    driver("", code=9)
    must_refuse(HardwareError, r"nvidia-smi lists \(it lists none\)", this_machine)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,0")
    driver(TWO_H200)
    must_refuse(HardwareError, r"CUDA_VISIBLE_DEVICES is '0,0', which names 0 twice; name each once", this_machine)


def test_a_slice_of_a_gpu_has_its_share_of_memory_and_rates(driver, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-111")
    driver(CUT, listed=SLICES)
    gpu, whole = this_machine().gpu, find_gpu("A100-40GB").gpu
    assert this_machine().name == "1x A100-40GB MIG 3g.20gb"
    assert 17 * GIB < gpu.memory_bytes < 19.6 * GIB
    assert gpu.dense_flops["bfloat16"] == pytest.approx(whole.dense_flops["bfloat16"] * 3 / 7)
    assert gpu.memory_bytes_per_second < 0.6 * whole.memory_bytes_per_second
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-111,MIG-222")
    must_refuse(HardwareError, "names 2 MIG slices, and a process can use one", this_machine)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-333")
    must_refuse(HardwareError, r"none of the slices that nvidia-smi lists \(MIG-111, MIG-222\)", this_machine)


@pytest.mark.parametrize("visible", [None, "0"])
def test_a_gpu_that_is_cut_in_slices_is_not_planned_for_as_a_whole(driver, monkeypatch, visible):
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    driver(CUT, listed=SLICES)
    assert said_by(HardwareError, this_machine) == (
        "GPU 0 (NVIDIA A100-SXM4-40GB) is cut in MIG slices, of which a process is given one; name it by "
        "CUDA_VISIBLE_DEVICES: MIG-111 (3g.20gb), MIG-222 (1g.5gb)"
    )


def test_a_gpu_without_memory_of_its_own_has_the_system_s(driver):
    driver("0, GPU-a, NVIDIA GB10, [N/A], 580.1, [N/A], [N/A]\n")
    cluster = this_machine()
    assert cluster.gpu.memory_bytes == system_memory()
    assert 0 < cluster.gpu.usable_bytes < system_memory()
    assert "held by other programs, in the system's memory, which it shares" in cluster.notes[-1]


def test_without_gpus_processes_stand_in_with_nominal_rates(driver):
    cluster = this_machine()
    cores, count = usable_cores(), cluster.num_gpus
    assert cluster.gpu.kind == "cpu"
    assert count == min(cores, MAX_PROCESSES)
    assert cluster.gpu.dense_flops["float32"] == pytest.approx(NOMINAL_FLOPS["float32"] * cores / count)
    assert not cluster.gpu.measured
    assert 0 < cluster.gpu.memory_bytes * count < 2**50
    facts = machine_facts()
    assert set(facts["libraries"]) == set(LIBRARIES)
    assert facts["cores"] >= 1
    assert facts["disk_free_bytes"] > 0
    json.dumps(facts)
