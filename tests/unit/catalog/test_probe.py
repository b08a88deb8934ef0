"""What this machine is, read without torch."""

import json
import os
import sys

import pytest

from shardwise.catalog.probe import LIBRARIES, machine_facts, parse_gpu_list, this_machine
from shardwise.catalog.processors import MAX_PROCESSES, NOMINAL_FLOPS, usable_cores
from shardwise.errors import HardwareError

TWO_H200 = "0, GPU-aaa, NVIDIA H200, 143771, 570.1\n1, GPU-bbb, NVIDIA H200, 143000, 570.1\n"


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A machine whose nvidia-smi prints what the test says; returns the setter."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("SHARDWISE_CACHE", str(tmp_path))

    def prints(text, code=0):
        program = folder / "nvidia-smi"
        program.write_text(f"#!{sys.executable}\nimport sys\nsys.stdout.write({text!r})\nsys.exit({code})\n")
        program.chmod(0o755)

    prints("", code=9)
    return prints


def test_gpus_are_what_the_driver_says_with_its_smallest_memory(driver):
    driver(TWO_H200)
    cluster = this_machine()
    assert cluster.name == "2x H200"
    assert cluster.gpu.memory_bytes == 143000 * 1024**2


@pytest.mark.parametrize(
    ("visible", "name"), [("1", "1x H200"), ("GPU-bbb,0", "2x H200"), ("0,7,1", "1x H200"), ("", None), ("-1", None)]
)
def test_hidden_gpus_do_not_count(driver, monkeypatch, visible, name):
    driver(TWO_H200)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert this_machine().name == (name or f"cpu:{min(usable_cores(), MAX_PROCESSES)}")


def test_gpus_of_different_kinds_are_a_sentence(driver):
    driver(TWO_H200 + "2, GPU-ccc, NVIDIA L4, 23034, 570.1\n")
    with pytest.raises(HardwareError, match="CUDA_VISIBLE_DEVICES"):
        this_machine()


def test_an_unknown_gpu_is_a_sentence(driver):
    driver("0, GPU-a, NVIDIA Z9000, 1024, 1\n")
    with pytest.raises(HardwareError, match="Z9000"):
        this_machine()


def test_without_gpus_processes_stand_in_with_nominal_rates(driver):
    cluster = this_machine()
    cores, count = usable_cores(), cluster.num_gpus
    assert cluster.gpu.kind == "cpu"
    assert count == min(cores, MAX_PROCESSES)
    assert cluster.gpu.dense_flops["float32"] == pytest.approx(NOMINAL_FLOPS["float32"] * cores / count)
    assert not cluster.gpu.measured
    assert 0 < cluster.gpu.memory_bytes * count < 2**50


def test_lines_that_are_no_gpu_are_left_out():
    assert parse_gpu_list("No devices were found\n0, GPU-a, NVIDIA L4, [N/A], 1\n\n") == []


def test_facts_name_the_libraries_without_importing_them(driver):
    facts = machine_facts()
    assert set(facts["libraries"]) == set(LIBRARIES)
    assert facts["cores"] >= 1
    assert facts["disk_free_bytes"] > 0
    json.dumps(facts)
