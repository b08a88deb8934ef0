"""What ranks are started with, and what doctor says of the machine."""

import os
from importlib import metadata

import pytest

from shardwise.errors import InputError
from shardwise.launch.doctor import doctor, old_cudnn, supported_ranges
from shardwise.launch.processes import command
from shardwise.launch.processes.command import rank_environment, require_torch, worker_environment
from shardwise.launch.processes.torchrun import joined_environment
from shardwise.spec.cluster import DeviceKind
from tests.unit.fakes import nvidia_smi


def test_one_process_has_no_address_and_what_the_user_has_set_stays() -> None:
    base = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1"}
    environment = worker_environment(base, processes=1, kind="cpu") | rank_environment(0, processes=1, port=None)
    assert not {"MASTER_ADDR", "MASTER_PORT"} & environment.keys()
    mine = {"OMP_NUM_THREADS": "7", "TOKENIZERS_PARALLELISM": "true", "GLOO_SOCKET_IFNAME": "eth0", "PATH": "/bin"}
    environment = worker_environment(mine, processes=2, kind="cuda")
    assert {name: environment[name] for name in mine} == mine
    assert "CUDA_VISIBLE_DEVICES" not in environment


@pytest.mark.parametrize(("cores", "processes", "threads"), [(16, 4, "4"), (2, 4, "1"), (8, 3, "2")])
def test_the_cores_are_shared_by_the_processes(cores, processes, threads, monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert worker_environment({}, processes=processes, kind="cpu")["OMP_NUM_THREADS"] == threads


def test_ranks_on_gpus_let_segments_grow_unless_the_user_has_settings_of_the_allocator(monkeypatch) -> None:
    def settings(base: dict[str, str], kind: DeviceKind = "cuda") -> str | None:
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            monkeypatch.delenv(name, raising=False)
        for name, value in base.items():
            monkeypatch.setenv(name, value)
        started = worker_environment(base, processes=2, kind=kind).get("PYTORCH_ALLOC_CONF")
        assert joined_environment(kind).get("PYTORCH_ALLOC_CONF") == started
        return started

    assert settings({}) == "expandable_segments:True"
    assert settings({}, "cpu") is None
    assert settings({"PYTORCH_ALLOC_CONF": "backend:native"}) == "backend:native"
    assert settings({"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}) is None, "torch's older name for it"


def test_a_machine_without_torch_is_told_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'shardwise\[train\]'"):
        require_torch()


@pytest.mark.parametrize(("version", "expected"), [("2.13.0+cpu", True), ("2.14.0", False), ("2.10.1", False)])
def test_versions_are_compared_as_numbers(version, *, expected) -> None:
    assert supported_ranges()["torch"].contains(version) is expected


def test_doctor_says_what_is_wrong_with_visible_gpus_and_what_they_lack(tmp_path, monkeypatch) -> None:
    """An unknown name, and a C compiler for compiled blocks."""
    nvidia_smi(tmp_path, gpus="0, GPU-a, NVIDIA Z9000, 49140, 1, 48700, [N/A]\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    found = doctor()
    assert any(finding.what.startswith("CUDA_VISIBLE_DEVICES is '3', which is none") for finding in found.findings)
    assert found.facts["gpus"] == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("CC", raising=False)
    lacking, found = "no C compiler was found; needed for compiled blocks (train.compile)", doctor()
    assert found.facts["c_compiler"] is None
    assert any(finding.what.startswith("the GPU Z9000 is not in the catalogue") for finding in found.findings)
    assert {finding.what: finding.hint for finding in found.findings}[lacking].startswith("install gcc, or set")
    monkeypatch.setenv("CC", "/opt/cc")
    assert doctor().facts["c_compiler"] == "/opt/cc"
    assert lacking not in [finding.what for finding in doctor().findings]


def test_doctor_says_what_an_old_cudnn_of_the_system_costs_and_nothing_of_a_new_one(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
    old, new, found = (tmp_path / f"libcudnn.so.{version}" for version in ("9.10.2", "9.15.1", "9"))
    old.touch()
    found.symlink_to(old.name)
    said, hint = old_cudnn(["NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"])
    assert said == (
        f"cuDNN 9.10.2 in {tmp_path}, a folder of LD_LIBRARY_PATH, hides the one that torch brings; below 9.15.1 "
        "PyTorch takes FlashAttention-2 here, and attention over long rows takes about 1.6 times as long"
    )
    assert hint == f"leave {tmp_path} out of LD_LIBRARY_PATH"
    assert old_cudnn(["NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 5090", "Z9000"]) is None
    old.rename(new)
    found.unlink()
    found.symlink_to(new.name)
    assert old_cudnn(["NVIDIA H100 80GB HBM3"]) is None


@pytest.mark.parametrize(
    ("version", "says"), [("9.10.2.21", "cuDNN 9.10.2 came with torch"), ("9.20.0.1", None), (None, None)]
)
def test_doctor_says_what_an_old_cudnn_of_torch_costs(monkeypatch, version, says) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)

    def of(name):
        if name != "nvidia-cudnn-cu12" or version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", of)
    found = old_cudnn(["NVIDIA H100 80GB HBM3"])
    assert found is None if says is None else found is not None and found[0].startswith(says)
