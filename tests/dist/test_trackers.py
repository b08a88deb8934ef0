"""Real trackers get every step of a real training; each is tried where it is installed."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardwise import api
from shardwise.spec.job import Job
from shardwise.spec.run import RunDirectory, read_metrics


def trained(job: Job) -> dict[int, float]:
    """Loss by step, as metrics.jsonl has it."""
    result = api.train(job)
    assert "no longer reported to" not in result.run.rank_log(0).read_text()
    assert "is not reported to" not in result.run.rank_log(0).read_text()
    return {record["step"]: record["loss"] for record in read_metrics(result.run)}


@pytest.fixture
def reporting(
    make_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Job]]:
    """Jobs of three steps on one process that report to a tracker."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield lambda tracker: make_job(
        train={"max_steps": 3, "report_to": tracker}, hardware="cpu:1", output_dir=str(tmp_path / "run")
    )


def test_mlflow_gets_every_step(
    reporting: Callable[[str], Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed; pip install mlflow-skinny")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # asked for by MLflow 3.6 and later
    losses = trained(reporting("mlflow"))
    (metric,) = tmp_path.glob("mlruns/0/*/metrics/loss")
    written = [line.split() for line in metric.read_text().splitlines()]
    assert {int(step): float(value) for _, value, step, *_ in written} == losses
    assert (metric.parents[1] / "params" / "learning_rate").read_text() == "0.0005"
    assert (metric.parents[1] / "params" / "precision").read_text() == "fp32"


def test_weights_and_biases_gets_every_step(
    reporting: Callable[[str], Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed; pip install wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    losses = trained(reporting("wandb"))
    (log,) = RunDirectory(tmp_path / "run").root.glob("wandb/offline-run-*/run-*.wandb")
    assert {row["_step"]: row["train/loss"] for row in history(log)} == losses


def history(log: Path) -> list[dict[str, Any]]:
    """The rows of an offline run, which `wandb sync` would send."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows: list[dict[str, Any]] = []
    for content in records(log.read_bytes()):
        record = Record()
        record.ParseFromString(content)
        if record.HasField("history"):
            items = record.history.item
            rows.append({"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items})
    return rows


def records(log: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log behind W&B's header of 7 bytes: blocks of 32 KiB, records in up to many pieces."""
    at, block, whole = 7, 32768, b""
    while at + 7 <= len(log):
        if block - at % block < 7:
            at += block - at % block
            continue
        _checksum, size, kind = struct.unpack_from("<IHB", log, at)
        whole += log[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield whole
            whole = b""


@pytest.mark.slow
def test_tensorboard_gets_every_step(reporting: Callable[[str], Job], tmp_path: Path) -> None:
    losses = trained(reporting("tensorboard"))
    assert len(losses) == 3
    assert list((tmp_path / "run" / "tensorboard").glob("events.out.tfevents.*"))
