"""What a plan says that a strategy does must be so under every layout of that name."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.plan.explain.strategies import what_it_does
from shardwise.spec.layout.axes import Layout
from tests.unit.plan.asking import execution, plan

KEPT: dict[str, Any] = {"dp_shard": 2, "zero_stage": 2, "reshard_after_forward": False}


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (Layout(tp=4), "tp: each GPU has a slice of each matrix"),
        (Layout(dp_shard=4), "fsdp: weights, gradients and optimizer states are sharded; weights are gathered as they"),
        (Layout(**KEPT), "zero2: optimizer states and gradients are sharded; weights gathered for a forward stay for"),
        (Layout(dp_replicate=2, dp_shard=2), "hsdp: sharded inside groups of GPUs, and replicated between the groups"),
        (Layout(dp_replicate=2), "ddp: a whole copy fits on every GPU, so only gradients travel"),
        (Layout(dp_replicate=2, tp=2), "ddp: copies of the model work on different samples, and their gradients are"),
        (
            Layout(**KEPT, pp=2, schedule="zero_bubble"),
            "zero2: optimizer states are sharded; gathered weights and whole",
        ),
        (Layout(pp=2), "pp: layers lie on different GPUs, in stages that work on different micro-batches at once"),
    ],
)
def test_a_strategy_is_told_what_it_does(layout: Layout, said: str) -> None:
    assert what_it_does(execution(layout, gradient_accumulation_steps=4)).startswith(said)


@pytest.mark.parametrize("layout", [Layout(pp=2), Layout(pp=2, schedule="sequential")])
def test_with_one_micro_batch_one_stage_works_at_a_time(layout: Layout) -> None:
    assert "in stages of which one works at a time" in what_it_does(execution(layout))


@pytest.mark.parametrize("hardware", ["4x L40S", "2 x 2x L40S"])
def test_nothing_is_said_of_links_that_a_stated_layout_must_do_with(hardware: str) -> None:
    """Over PCI Express and between nodes tensor parallel waits for most of its time."""
    made = plan("llama-3.2-1b", hardware, "method: lora\nlayout: {tp: 4}\n").best
    assert "tp: each GPU has a slice of each matrix" in made.reasons
    assert not any("fast" in reason for reason in made.reasons if reason.startswith("tp:"))


def test_with_the_hosts_memory_a_single_gpu_is_not_said_to_have_room_for_all() -> None:
    assert "with the host's memory beside it" in what_it_does(execution(offload="optimizer"))
