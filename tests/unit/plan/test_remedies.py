"""What is advised has been tried: it helps, and less of it does not."""

from __future__ import annotations

import pytest

from tests.unit.plan.asking import plan


@pytest.mark.parametrize("count", [1, 4, 5])
def test_advice_names_the_first_larger_number_of_a_node_that_fits(count):
    text = "data: {max_length: 256}\ntrain: {global_batch_size: 1, offload: none}\n"
    assert "6x RTX-A5000 would fit" in plan("qwen2.5-7b", f"{count}x RTX-A5000", text).advice
    assert plan("qwen2.5-7b", "6x RTX-A5000", text).chosen is not None


def test_advice_names_no_more_nodes_than_are_needed():
    text = "data: {max_length: 256}\ntrain: {global_batch_size: 1, offload: none}\n"
    assert "11 x 8x H100-SXM would fit" in plan("llama-3.1-405b", "8x H100-SXM", text).advice
    assert plan("llama-3.1-405b", "11 x 8x H100-SXM", text).chosen is not None
    assert plan("llama-3.1-405b", "10 x 8x H100-SXM", text).chosen is None


def test_whole_logits_are_named_where_they_fit_and_are_faster():
    text = "method: lora\ngoal: cheapest\ndata: {max_length: 256}\ntrain: {global_batch_size: 7%s}\n"
    chunked, whole = (plan("gemma-3-1b", "1x T4", text % loss).best for loss in ("", ", loss: full"))
    assert (chunked.execution.loss, whole.execution.loss) == ("chunked", "full")
    percent = f"{1 - whole.time.step_seconds / chunked.time.step_seconds:.0%}".replace("%", " %")
    told = next(reason for reason in chunked.reasons if reason.startswith("loss is chunked"))
    assert told.endswith(f"they fit, and a step would be {percent} faster: to have that, state train.loss: full")
    stated = plan("gemma-3-1b", "1x T4", text % ", loss: chunked").best
    assert not any("state train.loss" in reason for reason in stated.reasons)
