"""Experts see no padding, and ranks of cp have as much attention to compute."""

import random
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from transformers import Qwen3MoeConfig
from transformers.masking_utils import causal_mask_function
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from shardwise.parallel.context import Context
from shardwise.parallel.context_attention import _halves
from shardwise.parallel.experts import RealRows, leave_padding
from shardwise.plan.costs.products import multiplications
from shardwise.train.step import _places
from tests.unit.plan.asking import Layout, execution, job, shape, work

REAL = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
LENGTH = 256


def mixture():
    torch.manual_seed(0)
    config = Qwen3MoeConfig(hidden_size=16, moe_intermediate_size=8, num_experts=4, num_experts_per_tok=2)
    config._experts_implementation = "grouped_mm"
    block = Qwen3MoeSparseMoeBlock(config)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return block


def gradients(block, hidden, where=REAL):
    """The block's output where there is no padding, and gradients of a loss that is there alone."""
    made = block(hidden)[where]
    made.square().sum().backward()
    return [made.detach(), *(parameter.grad for parameter in block.parameters())]


def test_padding_goes_to_no_expert_and_nothing_else_changes() -> None:
    hidden = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1))
    expected = gradients(mixture(), hidden)
    block, seen = mixture(), []
    inner = block.experts.forward
    block.experts.forward = lambda *given: seen.append([len(one) for one in given]) or inner(*given)
    rows = RealRows(places=_places(REAL, torch.device("cpu")), count=REAL.numel())
    leave_padding({block: block.experts}, rows, last=set())
    for one, wanted in zip(gradients(block, hidden), expected, strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-5, atol=1e-6)
    assert seen == [[10, 10, 10]]
    rows.places = None
    block(hidden)
    assert seen[-1] == [12, 12, 12]


def test_of_the_last_block_experts_see_what_is_trained() -> None:
    hidden = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1))
    trained = REAL & (torch.arange(6) > 1)
    expected, block, seen = gradients(mixture(), hidden, trained), mixture(), []
    inner = block.experts.forward
    block.experts.forward = lambda *given: seen.append(len(given[0])) or inner(*given)
    rows = RealRows(count=REAL.numel(), trained=trained.flatten().nonzero().squeeze(1))
    leave_padding({block: block.experts}, rows, last={block})
    for one, wanted in zip(gradients(block, hidden, trained), expected, strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-5, atol=1e-6)
    rows.trained = None
    block(hidden)
    assert seen == [6, 12]


def test_rows_with_hardly_any_padding_and_rows_of_nothing_else_are_left_as_they_are() -> None:
    places = partial(_places, device=torch.device("cpu"))
    assert places(torch.ones(2, 3).bool()) is None
    assert places((torch.arange(100) < 97).view(2, 50)) is None
    assert places(torch.zeros(2, 3).bool()) is None
    assert places(torch.tensor([[True, False]])).tolist() == [0]


def _packing(draw: random.Random) -> torch.Tensor:
    """Which document each token of a row is of: some long, many short."""
    ends: list[int] = []
    while sum(ends) < LENGTH:
        ends.append(min(LENGTH - sum(ends), int(2 ** draw.uniform(0, 8))))
    draw.shuffle(ends)
    return torch.tensor([index for index, length in enumerate(ends) for _ in range(length)])


def _compared(documents: torch.Tensor, *, degree: int, index: int) -> tuple[int, int]:
    """How many scores a rank's kernels compute of a row, and how many of them a query sees."""
    mesh: Any = SimpleNamespace(size=lambda: degree, get_local_rank=lambda: index, get_group=lambda: None)
    context = Context(mesh)
    context._documents = documents[None]
    mask = context._mask(q_length=LENGTH // degree, mask_function=causal_mask_function, device=torch.device("cpu"))
    whole = torch.zeros(1, 1, LENGTH, 4)
    given = [(mine, of) for mine, of in _halves(context._parts, whole, whole, mask)]
    computed = sum((mine.stop - mine.start) * of.keys.shape[2] for mine, of in given)
    return computed, sum(int(cast(torch.Tensor, of.seen).sum()) for _, of in given)


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_ranks_compute_as_many_scores_on_drawn_packings(degree) -> None:
    """As many as the plan counts; and every pair that a document has is seen by one rank, once."""
    draw = random.Random(48)
    asked, model = job(data={"packing": True, "max_length": LENGTH}), shape()
    _, masked = multiplications(work(asked, model, execution(Layout(cp=degree)), f"{degree}x H100-SXM"))
    widths = model.num_attention_heads * (model.head_dim + (model.value_head_dim or model.head_dim))
    for _ in range(20):
        documents = _packing(draw)
        ranks = [_compared(documents, degree=degree, index=index) for index in range(degree)]
        scores = [computed for computed, _ in ranks]
        assert max(scores) <= 1.05 * min(scores)
        assert sum(scores) == pytest.approx(masked / widths, rel=1e-6)
        assert sum(seen for _, seen in ranks) == sum(size * (size + 1) // 2 for size in documents.bincount().tolist())
