"""In which order gradients are added up behind the last backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from shardwise.parallel import gradients
from shardwise.parallel.gradients import Finish


def test_the_copies_of_a_tied_weight_are_added_last_so_that_both_ends_round_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ring adds elements of a message in an order that depends on their place in it, and the ends' messages differ:
    with three replicas or more, two sums of the same three numbers may differ in the last bit."""
    added: list[str] = []

    def sum_over(group: Any, tensors: list[torch.Tensor]) -> None:
        added.append(group)

    monkeypatch.setattr(gradients, "sum_over", sum_over)
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    ends: Any = "ends"
    replicas: Any = "replicas"
    Finish(trained=(weight,), tied=(weight,), ends=ends, replicas=replicas)()
    assert added == ["replicas", "ends"]
