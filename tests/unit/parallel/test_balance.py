"""Ranks of cp have as much attention to compute, whatever documents a packed row holds."""

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from transformers.masking_utils import causal_mask_function

from shardwise.parallel.context import Context
from shardwise.parallel.context_attention import _halves
from shardwise.plan.costs.attention import multiplications
from shardwise.spec.layout.axes import Layout
from tests.unit.plan.asking import execution, job, shape, work

LENGTH = 256


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
    q_length = LENGTH // degree
    mask = context._mask(q_length=q_length, mask_function=causal_mask_function, device=torch.device("cpu"))
    assert mask is not None
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
        sizes = documents.bincount().tolist()
        assert sum(seen for _, seen in ranks) == sum(size * (size + 1) // 2 for size in sizes)
