"""In which order gradients are added up behind the last backward."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import nn

from shardwise.parallel import gradients
from shardwise.parallel.gradients import Finish


def test_the_copies_of_a_tied_weight_are_added_last_so_that_both_ends_round_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added: list[str] = []
    monkeypatch.setattr(gradients, "sum_over", lambda group, tensors: added.append(group))
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    ends, replicas = cast(Any, "ends"), cast(Any, "replicas")
    Finish(trained=(weight,), tied=(weight,), ends=ends, replicas=replicas)()
    assert added == ["replicas", "ends"]
