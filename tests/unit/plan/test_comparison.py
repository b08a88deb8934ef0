"""What is said of one that fits and was not chosen is what makes it worse."""

import re

import pytest

from tests.unit.plan.asking import plan


def reasons(model: str, hardware: str, text: str) -> dict[str, str]:
    return {one.strategy: one.reason for one in plan(model, hardware, text).rejected}


def test_padding_is_named_where_ranks_do_not_divide_the_batch():
    found = reasons(
        "llama-3.1-8b", "6x A100-80GB", "method: lora\nlayout: [pp, zero2]\ntrain: {global_batch_size: 7}\n"
    )
    assert found["zero2"].endswith("its ranks go through 12 sequences a step, padding among them, against 7")


def test_the_same_work_is_not_called_smaller():
    found = reasons("llama-3.1-8b", "8x A100-SXM-80GB", "layout: [zero2, fsdp, hsdp]\n")
    assert found["hsdp"].endswith("what it moves takes the GPU's time beside the same work")


def test_work_in_slices_is_called_smaller():
    text = "method: lora\ndata: {max_length: 2048}\n"
    assert reasons("llama-3.1-8b", "2x A100-80GB-SXM", text)["tp"].endswith(
        ("its pieces of work are smaller, and use the GPU less well", "GPUs do nothing but send, against 0 %")
    )


def test_what_takes_as_long_is_not_called_slower():
    text = "method: lora\ndata: {max_length: 8192}\ntrain: {global_batch_size: 1, gradient_checkpointing: selective}\n"
    text += "layout: [mp, pp]\n"
    assert reasons("deepseek-v2-lite", "5x L4", text)["pp"] == "takes as long, and mp is simpler"


@pytest.mark.parametrize(
    ("model", "hardware", "text"),
    [
        ("mixtral-8x7b", "4x A100-80GB", "method: full\ntrain: {global_batch_size: 7}\n"),
        ("pythia-1.4b", "2 x 4x L40S", "data: {max_length: 1000}\ntrain: {global_batch_size: 7}\n"),
        ("tinyllama-1.1b", "8x L4", "method: full\ntrain: {global_batch_size: 1}\n"),
        ("llama-3.1-8b", "6x H100-SXM", "method: full\ngoal: cheapest\ntrain: {global_batch_size: 16}\n"),
    ],
)
def test_more_is_said_than_the_chosen_one_has(model: str, hardware: str, text: str) -> None:
    """What is named as taking longer has a larger figure than stands against it."""
    told = [
        re.search(r"(?::| together .+) for (.+?)(?: of the time .+?,)? against (.+?)(?: of a step .+)?$", reason)
        for reason in reasons(model, hardware, text).values()
    ]
    figures = [found.groups() for found in told if found]
    assert figures
    assert all(_figure(mine) > _figure(best) for mine, best in figures), figures


def _figure(written: str) -> float:
    """Of a share, or of a duration."""
    units = {"%": 1, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([0-9.]+) (%|ms|s|min|h)", written))
