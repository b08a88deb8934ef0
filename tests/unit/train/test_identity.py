"""A refused resume names what differs, and where it is mended: job, version or data."""

from typing import Any

import pytest

from shardwise.errors import ModelError
from shardwise.spec.job.keys import Job
from shardwise.spec.job.places import Places
from shardwise.train.saving.checkpoint import identity_of, refuse_another

PLACES = Places(by_key={"data.path": "job.yaml:4", "train.learning_rate": "--set", "train": "job.yaml:7"}, file="job")
MODEL = {"config.json": "1", "model.safetensors": "2"}


def identity(data: str = "a", *, files: dict[str, str] = MODEL, **train: Any) -> dict[str, Any]:
    job = Job.model_validate({"model": "m", "data": {"path": "rows.jsonl"}, "train": train})
    return identity_of(job, model=files, data=data)


def refusal(written: Any, now: dict[str, Any]) -> list[str]:
    with pytest.raises(ModelError) as caught:
        refuse_another(written, now, folder="out/checkpoint-5", places=PLACES)
    return [str(problem) for problem in caught.value.problems]


def test_what_may_change_is_taken_and_what_differs_is_named_at_its_place() -> None:
    refuse_another(identity(), identity(save_steps=7, micro_batch_size=2), folder="out", places=PLACES)
    first, second = refusal(identity(learning_rate=1.0, seed=1), identity(data="b", learning_rate=2.0, seed=2))
    wrote = "out/checkpoint-5 was written with 1"
    assert first.startswith(f"--set: train.learning_rate is 2.0, and {wrote}.0; bring back what it was written with")
    assert second.startswith(f"job.yaml:7: train.seed is 2, and {wrote}; ")
    (said,) = refusal(identity(), identity(data="b"))
    assert said.startswith("job.yaml:4: data.path: out/checkpoint-5 was written from other data by the same job: ")


def test_another_version_or_model_under_the_same_name_is_named() -> None:
    written, now = identity(), identity(data="b")
    now["versions"]["tokenizers"] = "9.9"
    (said,) = refusal(written, now)
    was = written["versions"]["tokenizers"]
    assert said.startswith(f"out/checkpoint-5: was written with tokenizers {was}, and 9.9")
    (said,) = refusal(identity(), identity(files={**MODEL, "model.safetensors": "3"}))
    assert said.startswith(
        "job:1: model.safetensors of this model is another file than out/checkpoint-5 was written with, under the same "
        "name; bring back what it was written with"
    )
    now = identity(files={"config.json": "4"})
    now["job"]["model"] = "n"
    (said,) = refusal(identity(), now)
    assert said.startswith("job:1: model is 'n', and out/checkpoint-5 was written with 'm'")
