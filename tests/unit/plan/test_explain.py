"""What a plan says of its choice."""

from __future__ import annotations

from tests.unit.plan.asking import plan


def test_whole_logits_are_named_where_they_fit_and_are_faster():
    text = "method: lora\ngoal: cheapest\ndata: {max_length: 256}\ntrain: {global_batch_size: 7%s}\n"
    chunked, whole = (plan("gemma-3-1b", "1x T4", text % loss).best for loss in ("", ", loss: full"))
    assert (chunked.execution.loss, whole.execution.loss) == ("chunked", "full")
    percent = f"{1 - whole.time.step_seconds / chunked.time.step_seconds:.0%}".replace("%", " %")
    told = next(reason for reason in chunked.reasons if reason.startswith("loss is chunked"))
    assert told.endswith(f"they fit, and a step would be {percent} faster: to have that, state train.loss: full")
    stated = plan("gemma-3-1b", "1x T4", text % ", loss: chunked").best
    assert not any("state train.loss" in reason for reason in stated.reasons)
