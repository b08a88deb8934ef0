"""The keys of preferences: TRL's defaults, and a sentence where one is not read."""

from typing import Any

import pytest

from shardwise.errors import JobError
from shardwise.spec.job.file import job_from_data


def test_defaults_are_those_of_trl() -> None:
    job = job_from_data({"model": "m", "objective": "dpo", "preference": {"loss_type": "ipo"}})
    assert job.preference is not None
    assert (job.preference.beta, job.preference.loss_type, job.preference.label_smoothing) == (0.1, ["ipo"], 0.0)
    assert (job.train.learning_rate, job.train.disable_dropout, job.sides) == (1e-6, True, 2)
    kto = job_from_data({"model": "m", "objective": "kto", "method": "lora", "lora": {"lora_dropout": 0.1}})
    assert kto.preference is not None
    assert (kto.preference.loss_type, kto.train.disable_dropout, kto.sides) == (["kto"], False, 1)
    assert job_from_data(kto.to_json()) == kto


def test_a_job_of_text_says_nothing_of_preferences() -> None:
    assert not {"objective", "preference"} & job_from_data({"model": "m"}).to_json().keys()


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        ({"preference": {"beta": 0.2}}, "preference: is set but objective is sft; write objective: dpo"),
        ({"objective": "dop"}, "did you mean 'dpo'?"),
        ({"objective": "orpo", "preference": {"loss_type": "ipo"}}, "loss_type is set, which objective orpo does not"),
        ({"objective": "orpo", "preference": {"reference": "none"}}, "reference is set, which objective orpo does not"),
        ({"objective": "dpo", "preference": {"loss_type": "kto"}}, "of single rows with a label; write objective: kto"),
        ({"objective": "kto", "preference": {"loss_type": "ipo"}}, "loss_type ipo is of pairs; objective kto has kto"),
        ({"objective": "kto", "preference": {"reference": "none"}}, "kto compares with a reference; write auto"),
        ({"objective": "dpo", "preference": {"loss_type": "aot"}}, "it sorts the pairs of a micro-batch"),
        ({"objective": "dpo", "preference": {"loss_type": "simpo"}}, "write objective: simpo"),
        ({"objective": "dpo", "preference": {"loss_type": "exo_pair"}}, "exo_pair needs label_smoothing above 0"),
        ({"objective": "dpo", "preference": {"label_smoothing": 0.1}}, "losses robust and exo_pair read alone"),
        ({"objective": "dpo", "preference": {"loss_weights": [1.0, 2.0]}}, "has 2 numbers for 1 losses in loss_type"),
        ({"objective": "dpo", "preference": {"simpo_gamma": 1.0}}, "simpo_gamma is set, which objective dpo does not"),
        ({"objective": "dpo", "data": {"train_on": "all"}}, "compares all that stands behind the prompt; remove it"),
        ({"objective": "dpo", "precompute_ref_log_probs": True}, "write preference.reference: precomputed"),
    ],
)
def test_what_an_objective_does_not_read_is_refused(job: dict[str, Any], sentence: str) -> None:
    with pytest.raises(JobError) as caught:
        job_from_data({"model": "m", **job})
    assert sentence in str(caught.value)
