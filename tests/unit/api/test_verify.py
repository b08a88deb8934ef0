"""`verify` around its trainings: what it starts and says, and what rounding may do."""

import math
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from shardwise import api
from shardwise.api.checks.proof import ROUNDING, Look, damped_look
from shardwise.api.checks.verifying import for_parity
from shardwise.catalog.config import shape_from_data
from shardwise.errors import InputError, StoppedError, UnsupportedError, WorkerFailedError
from shardwise.spec.job.file import parse_job
from shardwise.spec.job.keys import TrainSpec
from tests.refusals import must_refuse

#: Each layout goes wrong in a way of its own, by the name of its folder.
WRONG = """
import struct
listen()
layout = run.root.name
if layout == "zero2-2" and rank == 1:
    fail("the shard is empty")
if layout == "zero1-2" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 0:
    for step in (1, 2, 3):
        norm = 1.5 if (layout, step) == ("fsdp-2", 2) else 1.0
        counts = {"tokens": 10, "trained_tokens": 5, "epoch": step / 3, "learning_rate": 0.1}
        append_line(run.metrics, {"step": step, "loss": 4.0 - step, "grad_norm": norm, "step_seconds": 0.1, **counts})
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    run.final.mkdir()
    weight = struct.pack("<f", 2.0 if layout == "hsdp-4" else 1.0)
    (run.final / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + weight)
outcome("finished")
"""
PLAIN: dict[str, Any] = {"model_type": "llama"}
SHORT: dict[str, Any] = {"model_type": "llama", "dtype": "bfloat16"}
DROPS: dict[str, Any] = {"model_type": "gpt2"}
STEPS, RATE, NORM, TRAINED, TOLERANCE = 20, 1e-3, 0.5, 1_000_000, 1e-5
RECORDS: list[dict[str, Any]] = [{"learning_rate": RATE, "grad_norm": NORM}] * STEPS


@pytest.mark.slow
def test_each_layout_is_trained_anew_and_the_first_difference_is_named(make, job, tmp_path, capfd) -> None:
    make(WRONG, name="wrong_worker")
    updates: list[object] = []
    parity = api.verify(job(), layouts=["fsdp", "hsdp", "tp-3"], on_update=updates.append)
    first = {row.layout: row.first and row.first.figure for row in parity.layouts}
    assert first == {"fsdp-2": "grad_norm", "hsdp-4": "weights"}
    said = "differs at step 2: grad_norm is 1.5, on one process 1"
    assert parity.sentence == f"fsdp-2 {said}; with sgd {said}"
    assert capfd.readouterr().err.count("counting rows") == 1, "the data are prepared once"
    assert [layout for layout, _ in parity.unable] == ["tp-3"]
    tried = [u for u in updates if isinstance(u, api.Trying)]
    asked = [("single-1", 1, 3), ("fsdp-2", 2, 3), ("hsdp-4", 3, 3)]
    assert [(u.layout, u.number, u.total) for u in tried if not u.again] == asked
    again = [(u.layout, u.again) for u in tried if u.again]
    assert again == [("single-1", "sgd"), ("fsdp-2", "sgd"), ("hsdp-4", "sgd")], "one process is trained again once"
    make(WRONG.replace("1.5 if", "1.0 if"), name="wrong_worker")
    assert api.verify(job(), layouts=["fsdp"]).agrees, "an earlier run must not speak for this one"


@pytest.mark.slow
def test_one_process_that_fails_in_a_later_look_is_not_put_down_to_the_layout(make, job) -> None:
    make('if run.root.parent.name == "sgd":\n    fail("no sgd here")\n' + WRONG, name="wrong_worker")
    parity = api.verify(job(), layouts=["hsdp"])
    assert not parity.agrees
    assert "; with sgd did not train: one process itself failed: rank 0 failed while training" in parity.sentence
    assert "no sgd here" in parity.sentence


@pytest.mark.slow
def test_a_layout_that_fails_differs_and_one_process_that_fails_ends_it(make, job) -> None:
    make(WRONG, name="wrong_worker")
    parity = api.verify(job(), layouts=["zero2", "zero1", "ddp"])
    rows = [(row.layout, None if row.first is None else row.first.figure) for row in parity.layouts]
    assert rows == [("zero2-2", "run"), ("zero1-2", "run"), ("ddp-2", None)]
    assert parity.layouts[1].first.detail.startswith("rank 1 was ended by signal 9 (SIGKILL)")
    assert parity.sentence.startswith("zero2-2 did not train: rank 1 failed while training (step 17): ValueError")
    make("fail('no weights')", name="wrong_worker")
    must_refuse(WorkerFailedError, "no weights", api.verify, job(), layouts=["ddp"])


def test_what_cannot_be_answered_is_bad_input(job, monkeypatch) -> None:
    for layouts, said in ((["single"], "nothing to compare"), (["tp-3"], "tp-3: tp = 3 does not divide")):
        must_refuse(InputError, said, api.verify, job(), layouts=layouts)
    with pytest.raises(InputError, match=r"write --set hardware=cpu:8 for as many processors$"):
        api.verify(job("layout: {dp_shard: 4, tp: 2}"), layouts=["hsdp+tp", "job"])
    with pytest.raises(InputError, match="tp-2: compile is not trained under tp; use compile: false"):
        api.verify(job("train: {compile: true}"), layouts=["tp"])
    with pytest.raises(UnsupportedError, match=r"yaml:\d+: verify does not compare under fp16: .* fp32 to compare"):
        api.verify(job("train: {precision: fp16}"), layouts=["fsdp"])
    for wrong in ({"steps": 0}, {"tolerance": float("nan")}, {"tolerance": 1.0}):
        with pytest.raises(InputError, match="expected at least 1"):
            api.verify(job(), **wrong)  # type: ignore[arg-type]
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"):
        monkeypatch.setenv(name, "0" if "RANK" in name else "1")
    must_refuse(InputError, "without torchrun", api.verify, job())


@pytest.mark.parametrize("verb", [api.verify, api.compare])
def test_a_model_that_no_layout_trains_is_refused_before_any_is_begun(verb, tmp_path) -> None:
    updates: list[object] = []
    text = f"model: tiiuae/falcon-7b\nmethod: qlora\nhardware: cpu:2\noutput_dir: {tmp_path / 'run'}\n"
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(UnsupportedError, match=r"job.yaml:2: method qlora does not quantise falcon"):
        verb(tmp_path / "job.yaml", layouts=["ddp"], on_update=updates.append)
    assert updates == []
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("model", "text", "keys"),
    [
        (PLAIN, "train: {precision: bf16, max_steps: 50, save_steps: 5}", ["precision", "save_steps", "max_steps"]),
        (PLAIN, "method: lora\nlora: {lora_dropout: 0.1}\ntrain: {max_steps: 3}", ["precision", "lora_dropout"]),
        (SHORT, "train: {precision: fp32, max_steps: 7}", ["save_dtype"]),
        (PLAIN, "method: lora\ntrain: {precision: fp32, max_steps: 7, save_dtype: bfloat16}", ["save_dtype"]),
        (DROPS, "train: {precision: fp32, max_steps: 7}", ["disable_dropout"]),
        ({**DROPS, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}, "train: {precision: fp32, max_steps: 7}", []),
    ],
)
def test_what_the_proof_changes_is_said_and_nothing_else_changes(model, text, keys) -> None:
    shape = shape_from_data(model, file="config.json")
    overrides, changes = for_parity(parse_job(f"model: m\n{text}"), model=shape, steps=20)
    assert [override.path[-1] for override in overrides] == keys
    assert [change.split()[0].split(".")[-1] for change in changes] == keys


#: Asks the launcher to stop, as a cluster would, and ends before the request can reach it.
ASKED_TOO_LATE = """
write_text(run.logs / f"rank_{rank}.pid", f"{os.getpid()}\\n")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(int(os.environ["TEST_LAUNCHER"]), signal.SIGTERM)
time.sleep(1)
if rank == 0:
    counts = {"tokens": 10, "trained_tokens": 5, "epoch": 1.0, "learning_rate": 0.1}
    append_line(run.metrics, {"step": 1, "loss": 1.0, "grad_norm": 1.0, "step_seconds": 0.1, **counts})
    write_text(run.final / "config.json", "{}")
outcome("finished")
"""


def test_a_request_that_a_training_was_too_far_on_to_follow_begins_no_other(make, job, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TEST_LAUNCHER", str(os.getpid()))
    make(ASKED_TOO_LATE, name="wrong_worker")
    with pytest.raises(StoppedError, match="stopped before ddp-2; nothing is proven") as caught:
        api.verify(job(), layouts=["ddp", "fsdp"])
    assert caught.value.exit_code == 128 + signal.SIGTERM
    assert [path.name for path in (tmp_path / "run" / "verify").iterdir()] == ["single-1"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def look(train: TrainSpec | None = None, *, tolerance: float = TOLERANCE) -> Look:
    return damped_look(train or TrainSpec(), RECORDS, num_trained=TRAINED, tolerance=tolerance)


def carried(gradient: Callable[[int], float], train: TrainSpec, *, forgets: float = 1.0) -> float:
    """Where AdamW takes one weight from 0; `forgets`: what a step leaves of its second moment."""
    weight = first = second = 0.0
    b1, b2 = train.adam_beta1, train.adam_beta2
    for step in range(1, STEPS + 1):
        first = b1 * first + (1 - b1) * gradient(step)
        second = b2 * second + (1 - b2) * gradient(step) ** 2
        weight -= RATE * first / (1 - b1**step) / (math.sqrt(second / (1 - b2**step)) + train.adam_epsilon)
        second *= forgets
    return weight


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6])
def test_rounding_carries_no_tensor_past_the_floor(tolerance: float) -> None:
    damped = look(tolerance=tolerance)
    floor = damped.floor(RECORDS, tolerance=tolerance)
    for size in (1, 10_000):
        one = ROUNDING * NORM / math.sqrt(size)
        assert abs(carried(lambda _, one=one: one, damped.train)) * math.sqrt(size) <= floor
        assert abs(carried(lambda step, one=one: one * (-1) ** step, damped.train)) * math.sqrt(size) <= floor


def test_a_second_moment_that_loses_a_percent_in_every_step_carries_a_matrix_past_it() -> None:
    """Of a thousandth of all weights, whose gradients are a twentieth of others'."""
    damped, size = look(), TRAINED // 1000
    one = 0.05 * NORM / math.sqrt(TRAINED)
    apart = carried(lambda _: one, damped.train) - carried(lambda _: one, damped.train, forgets=0.99)
    assert abs(apart) * math.sqrt(size) > damped.floor(RECORDS, tolerance=TOLERANCE)


def test_adafactor_is_trained_again_as_it_is_for_it_has_no_epsilon_of_adamw() -> None:
    assert look(TrainSpec(optimizer="adafactor")).overrides == ()
    assert look().overrides[0].text.startswith("train.adam_epsilon=")
