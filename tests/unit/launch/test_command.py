import os

import pytest

from shardwise.errors import InputError
from shardwise.launch.doctor import doctor, supported_ranges
from shardwise.launch.processes import command
from shardwise.launch.processes.command import rank_environment, require_torch, worker_environment
from shardwise.launch.processes.torchrun import joined_environment
from shardwise.spec.cluster import DeviceKind
from tests.unit.fakes import nvidia_smi


def test_one_process_has_no_address_whatever_another_group_had() -> None:
    base = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1"}
    environment = worker_environment(base, processes=1, kind="cpu") | rank_environment(0, processes=1, port=None)
    assert not {"MASTER_ADDR", "MASTER_PORT"} & environment.keys()


@pytest.mark.parametrize(("cores", "processes", "threads"), [(16, 4, "4"), (2, 4, "1"), (8, 3, "2")])
def test_the_cores_are_shared_by_the_processes(cores, processes, threads, monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    environment = worker_environment({}, processes=processes, kind="cpu")
    assert environment["OMP_NUM_THREADS"] == threads


def test_what_the_user_has_set_stays() -> None:
    mine = {"OMP_NUM_THREADS": "7", "TOKENIZERS_PARALLELISM": "true", "GLOO_SOCKET_IFNAME": "eth0", "PATH": "/bin"}
    environment = worker_environment(mine, processes=2, kind="cuda")
    assert {name: environment[name] for name in mine} == mine
    assert "CUDA_VISIBLE_DEVICES" not in environment


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


def test_doctor_says_what_is_wrong_with_visible_gpus_and_what_is_not_known_of_them(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    nvidia_smi(tmp_path, gpus="0, GPU-a, NVIDIA Z9000, 49140, 1, 48700, [N/A]\n")
    assert any(finding.what.startswith("the GPU Z9000 is not in the catalogue") for finding in doctor().findings)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    found = doctor()
    assert any(finding.what.startswith("CUDA_VISIBLE_DEVICES is '3', which is none") for finding in found.findings)
    assert found.facts["gpus"] == []


def test_doctor_says_that_blocks_cannot_be_compiled_for_a_gpu_without_a_c_compiler(tmp_path, monkeypatch) -> None:
    nvidia_smi(tmp_path, gpus="0, GPU-a, NVIDIA H100, 81559, 1, 81000, [N/A]\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("CC", raising=False)
    lacking = "no C compiler was found; needed for compiled blocks (train.compile)"
    found = doctor()
    assert found.facts["c_compiler"] is None
    assert {finding.what: finding.hint for finding in found.findings}[lacking].startswith("install gcc, or set")
    monkeypatch.setenv("CC", "/opt/cc")
    assert doctor().facts["c_compiler"] == "/opt/cc"
    assert lacking not in [finding.what for finding in doctor().findings]
