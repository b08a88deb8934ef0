"""Prepared data is shorter than `data.max_length` says, and forecasts know it."""

import pytest

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import find_model
from shardwise.plan.answer import make_plan
from shardwise.spec.data_facts import Lengths
from shardwise.spec.job.file import job_from_data
from shardwise.spec.plan.forecast import MemoryForecast, Plan, TimeForecast


def answer(lengths: Lengths | None, *, packing: bool = False) -> Plan:
    job = job_from_data(
        {
            "model": "tinyllama-1.1b",
            "data": {"max_length": 1024, "packing": packing},
            "train": {"micro_batch_size": 2, "global_batch_size": 8, "gradient_checkpointing": "none", "loss": "full"},
            "layout": "ddp",
        }
    )
    model = find_model("tinyllama-1.1b", offline=True)
    return make_plan(job, model=model, cluster=parse_hardware("4x A100-80GB-SXM"), lengths=lengths)


def best(lengths: Lengths | None, *, packing: bool = False) -> tuple[MemoryForecast, TimeForecast]:
    plan = answer(lengths, packing=packing)
    return plan.best.memory, plan.best.time


def test_memory_is_forecast_for_the_longest_sequence_and_time_for_the_mean_one() -> None:
    full, longest, mean = best(None), best(Lengths(longest=500, mean=500)), best(Lengths(longest=500, mean=100))
    assert longest[0].peak_bytes < full[0].peak_bytes
    assert mean[0] == longest[0]
    assert mean[1].step_seconds < longest[1].step_seconds < full[1].step_seconds


def test_throughput_counts_no_padding_as_a_run_does() -> None:
    short, full = best(Lengths(longest=500, mean=90.5))[1], best(Lengths(longest=500, mean=96))[1]
    assert short.step_seconds == full.step_seconds
    assert short.tokens_per_second * short.step_seconds == pytest.approx(8 * 90.5)
    assert short.mfu == pytest.approx(full.mfu * 90.5 / 96)


def test_sequences_as_long_as_they_may_be_change_nothing() -> None:
    assert best(Lengths(longest=1024, mean=1024)) == best(None)


def test_the_job_in_the_plan_is_the_one_that_was_asked() -> None:
    assert answer(Lengths(longest=500, mean=100)).job == answer(None).job


def test_attention_of_packed_rows_takes_the_time_of_documents_where_their_length_is_known() -> None:
    whole, parts = (best(Lengths(longest=1024, mean=1024, document=of), packing=True)[1] for of in (1024, 64))
    assert parts.step_seconds < whole.step_seconds
    assert whole == best(None, packing=True)[1]
