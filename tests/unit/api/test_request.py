import json
from pathlib import Path
from typing import Any

import pytest

from shardwise import api
from shardwise.errors import HardwareError
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.request import Override, read_request, restricted_to

JOB = """\
model: m
hardware: cpu:2
train:
  seed: 7
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB, encoding="utf-8")
    return path


def test_a_key_is_found_in_the_file_or_in_the_last_flag_that_sets_it(file: Path) -> None:
    request = read_request(file, overrides=["train.seed=8", "train.seed=9"])
    assert request.job.train.seed == 9 and request.text == JOB
    assert request.where("train", "seed") == "--set train.seed=9"
    assert request.where("hardware") == f"{file}:2" and request.where("layout") == f"{file}:1"
    with pytest.raises(HardwareError) as caught, request.blaming("hardware"):
        raise HardwareError("no such GPU")
    assert str(caught.value) == f"{file}:2: no such GPU"


def test_a_setting_of_adapters_that_nobody_stated_is_placed_where_the_method_is(file: Path) -> None:
    targets = ("lora", "target_modules")
    flags = [Override.of("model=m"), Override.of_flag("--method", key="method", value="lora")]
    assert read_request(None, overrides=flags).where(*targets) == "--method lora"
    assert read_request(None, overrides=[*flags, "lora.r=4"]).where(*targets) == "--set lora.r=4"
    assert read_request(None, overrides=["model=m"]).where("data", "max_length") == "the flags"
    file.write_text(JOB + "method: lora\n", encoding="utf-8")
    assert read_request(file).where(*targets) == f"{file}:5"
    assert read_request(file, overrides=["lora.target_modules=[o]"]).where(*targets) == "--set lora.target_modules=[o]"


def test_a_flag_is_named_and_taken_as_the_user_wrote_it() -> None:
    for value in ("a: b", "[1", "null", "1", '"', "x # y", "two\nlines"):
        assert read_request(None, overrides=[Override.of_flag("--model", key="model", value=value)]).job.model == value


def test_a_plans_execution_is_asked_for_in_full(file: Path) -> None:
    sizes = {"micro_batch_size": 3, "gradient_accumulation_steps": 2}
    execution = Execution(layout=Layout(dp_shard=2), **sizes, gradient_checkpointing="full")
    data: dict[str, Any] = restricted_to(read_request(file).job.to_json(), execution)
    job = read_request(None, overrides=[f"{key}={json.dumps(value)}" for key, value in data.items()]).job
    assert job.layout != "auto"
    assert (job.train.micro_batch_size, job.train.gradient_checkpointing, job.train.seed) == (3, "full", 7)
    assert "auto" not in [value for key, value in job.train.model_dump().items() if key in execution.to_json()]


@pytest.mark.parametrize(("model", "packed"), [("falcon-7b", False), ("llama-3.1-8b", True)])
def test_rows_are_packed_by_auto_where_documents_stay_apart(model: str, packed: bool, capsys) -> None:
    flags = [f"model={model}", "method=lora", "hardware=1x H100-SXM", "data.packing=auto", "data.num_rows=100"]
    assert api.plan(overrides=flags).job["data"]["packing"] is packed
    said = "rows are padded: packing is not trained for falcon, whose code in transformers lets packed documents see"
    assert (said in capsys.readouterr().err) is not packed
