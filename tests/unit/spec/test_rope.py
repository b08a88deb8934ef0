"""How a job stretches rotary positions: transformers' words and checks, and what becomes of a
model's shape."""

from typing import Any

import pytest

from shardwise.catalog.models import config_of, find_model
from shardwise.errors import JobError, UnsupportedError
from shardwise.launch.run_folder import first_difference
from shardwise.spec.job.file import job_from_data
from shardwise.spec.job.keys import Job

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA3 = {"factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 4.0, "high_freq_factor": 4.0}


def _job(rope: dict[str, Any] | None, model: str = "qwen3-8b") -> Job:
    return job_from_data({"model": model, **({} if rope is None else {"rope_scaling": rope})})


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        ({"rope_type": "yarn"}, "rope_type yarn needs factor"),
        ({"rope_type": "longrope", "factor": 2.0}, "needs short_factor, long_factor, original_max_position_embeddings"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 3.0}, "rope_type linear has no beta_fast; remove it"),
        ({"rope_type": "linear", "factor": 0.5}, "rope_scaling.factor is 0.5"),
        ({"rope_type": "llama3", **LLAMA3}, "high_freq_factor is not above low_freq_factor"),
        ({**YARN, "beta_fast": 1.0, "beta_slow": 2.0}, "beta_fast is below beta_slow"),
        ({"rope_type": "ntk", "factor": 2.0}, "expected linear, dynamic, yarn, llama3 or longrope"),
    ],
)
def test_what_transformers_would_refuse_or_warn_of_is_refused(rope, said) -> None:
    with pytest.raises(JobError) as refused:
        _job(rope)
    assert said in str(refused.value)


def test_a_shape_reaches_as_far_as_its_positions_are_stretched() -> None:
    def reaches(rope: dict[str, Any]) -> tuple[int, int | None]:
        shape = find_model("qwen3-8b", rope=_job(rope).rope_scaling)
        return shape.max_position_embeddings, shape.steady_positions

    assert reaches(YARN) == (131072, None)
    assert reaches({"type": "linear", "factor": 2.0}) == (81920, None)
    assert reaches({"rope_type": "dynamic", "factor": 2.0}) == (81920, 40960)
    stated = config_of("qwen3-8b", rope=_job(YARN).rope_scaling)
    assert stated["rope_parameters"].items() >= YARN.items()
    assert "rope_scaling" not in stated


@pytest.mark.parametrize(
    ("model", "said"), [("gpt2", "has learned positions"), ("gemma-3-1b", "rotate in several ways")]
)
def test_models_that_it_does_not_fit_are_refused(model, said) -> None:
    with pytest.raises(UnsupportedError, match=said):
        find_model(model, rope=_job(YARN).rope_scaling)


def test_a_run_goes_on_with_the_same_value_alone() -> None:
    before, other = _job(YARN).to_json(), _job(YARN | {"factor": 2.0}).to_json()
    assert first_difference(before, other) == ("rope_scaling.factor", 4.0, 2.0)
    assert first_difference(before, _job(None).to_json()) == ("rope_scaling", before["rope_scaling"], None)
    assert "rope_scaling" not in _job(None).to_json()
