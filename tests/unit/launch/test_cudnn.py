"""A cuDNN that hides torch's, or is older than PyTorch wants for attention."""

from importlib import metadata

import pytest

from shardwise.launch import cudnn


@pytest.fixture
def hidden_by(tmp_path, monkeypatch):
    """A folder on LD_LIBRARY_PATH with a cuDNN of a version."""

    def make(version):
        (tmp_path / f"libcudnn.so.{version}").touch()
        (tmp_path / "libcudnn.so.9").symlink_to(f"libcudnn.so.{version}")
        monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
        return tmp_path

    return make


def test_doctor_says_what_an_old_cudnn_of_the_system_costs(hidden_by) -> None:
    folder = hidden_by("9.10.2")
    said, hint = cudnn.old_cudnn(["NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"])
    assert said == (
        f"cuDNN 9.10.2 in {folder}, a folder of LD_LIBRARY_PATH, hides the one that torch brings; below 9.15.1 PyTorch "
        "takes FlashAttention-2 here, and attention over long rows takes about 1.6 times as long"
    )
    assert hint == f"leave {folder} out of LD_LIBRARY_PATH"
    assert cudnn.old_cudnn(["NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 5090", "Z9000"]) is None


def test_a_new_cudnn_of_the_system_is_none_to_speak_of(hidden_by) -> None:
    hidden_by("9.15.1")
    assert cudnn.old_cudnn(["NVIDIA H100 80GB HBM3"]) is None


@pytest.mark.parametrize(("version", "says"), [("9.10.2.21", "cuDNN 9.10.2 came with torch"), ("9.20.0.1", None)])
def test_doctor_says_what_an_old_cudnn_of_torch_costs(monkeypatch, version, says) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    versions = {"nvidia-cudnn-cu12": version}

    def of(name):
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(cudnn.metadata, "version", of)
    found = cudnn.old_cudnn(["NVIDIA H100 80GB HBM3"])
    assert found is None if says is None else found is not None and found[0].startswith(says)
