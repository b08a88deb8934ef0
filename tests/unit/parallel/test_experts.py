"""Experts see no padding, and nothing that is trained notices."""

from functools import partial

import torch
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from shardwise.parallel.experts import RealRows, leave_padding
from shardwise.train.step import _places

REAL = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])


def mixture():
    torch.manual_seed(0)
    config = Qwen3MoeConfig(hidden_size=16, moe_intermediate_size=8, num_experts=4, num_experts_per_tok=2)
    config._experts_implementation = "grouped_mm"
    block = Qwen3MoeSparseMoeBlock(config)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return block


def gradients(block, hidden):
    """The block's output where there is no padding, and gradients of a loss that is there alone."""
    made = block(hidden)[REAL]
    made.square().sum().backward()
    return [made.detach(), *(parameter.grad for parameter in block.parameters())]


def test_padding_goes_to_no_expert_and_nothing_else_changes() -> None:
    hidden = torch.randn(2, 6, 16)
    expected = gradients(mixture(), hidden)
    block, seen = mixture(), []
    inner = block.experts.forward
    block.experts.forward = lambda *given: seen.append([len(one) for one in given]) or inner(*given)
    rows = RealRows(places=_places(REAL, torch.device("cpu")), count=REAL.numel())
    leave_padding([block.experts], rows)
    for one, wanted in zip(gradients(block, hidden), expected, strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-5, atol=1e-6)
    assert seen == [[10, 10, 10]]
    rows.places = None
    block(hidden)
    assert seen[-1] == [12, 12, 12]


def test_rows_with_hardly_any_padding_and_rows_of_nothing_else_are_left_as_they_are() -> None:
    places = partial(_places, device=torch.device("cpu"))
    assert places(torch.ones(2, 3).bool()) is None
    assert places((torch.arange(100) < 97).view(2, 50)) is None
    assert places(torch.zeros(2, 3).bool()) is None
    assert places(torch.tensor([[True, False]])).tolist() == [0]
