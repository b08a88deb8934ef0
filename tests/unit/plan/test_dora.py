"""DoRA's norms in the time of a forward, against what PEFT's own operators read and write."""

from typing import Any

import pytest
import torch
from peft.tuners.lora.dora import DoraLinearLayer
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardwise.plan.costs.products import norm_bytes
from shardwise.plan.time.pieces import pieces_of
from tests.unit.plan.asking import execution, job, shape, work

ROWS, COLUMNS, RANK = 96, 64, 4


class Moved(TorchDispatchMode):
    """Counts the bytes that operators other than products and views read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = func.name()
        if not (func.is_view or name.startswith(("aten::mm", "aten::detach", "aten::empty"))):
            seen = [one for one in tree_leaves((args, made)) if isinstance(one, torch.Tensor)]
            self.bytes += sum(one.nbytes for one in {id(one): one for one in seen}.values())
        return made


def moved_by_peft(*, adapters: torch.dtype, weights: torch.dtype, autocasts: bool) -> int:
    """Bytes that PEFT moves for the norms of one matrix, its adapter being of one type and it of another."""
    halves = [nn.Linear(COLUMNS, RANK, bias=False), nn.Linear(RANK, ROWS, bias=False)]
    a, b = (half.to(adapters) for half in halves)
    weight, layer = torch.ones(ROWS, COLUMNS, dtype=weights), DoraLinearLayer(fan_in_fan_out=False)
    with Moved() as moved, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocasts):
        product = layer.get_lora_weight(lora_A=a, lora_B=b).to(adapters)
        layer.get_weight_norm(weight=weight.to(adapters), lora_weight=product.detach(), scaling=2.0)
    return moved.bytes


@pytest.mark.parametrize(
    ("precision", "adapters", "weights"),
    [
        ("fp32", torch.float32, torch.float32),
        ("bf16", torch.bfloat16, torch.bfloat16),
        ("mixed", torch.float32, torch.bfloat16),
    ],
)
def test_norms_move_what_pefts_operators_move(precision: Any, adapters: torch.dtype, weights: torch.dtype) -> None:
    made = work(job(method="lora", lora={"use_dora": True}), shape(), execution(precision=precision))
    measured = moved_by_peft(adapters=adapters, weights=weights, autocasts=precision == "mixed")
    assert norm_bytes(made, rows=ROWS, columns=COLUMNS) == pytest.approx(measured, rel=0.1)


def forward_and_backward(
    *, dora: bool, length: int, recompute: Any = "none", dropout: float = 0.0
) -> tuple[float, float]:
    lora = {"r": 8, "use_dora": dora, "lora_dropout": dropout}
    model = shape(hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8)
    asked = job(method="lora", lora=lora, data={"max_length": length})
    made = pieces_of(work(asked, model, execution(gradient_checkpointing=recompute), "1x H100-SXM"))
    return made.forward.computing, made.backward.computing


def test_norms_are_taken_in_forward_and_where_it_is_computed_again() -> None:
    """Nothing of a step on short sequences takes longer, and backward has its own only where blocks are recomputed."""
    plain, normed = (forward_and_backward(dora=dora, length=64) for dora in (False, True))
    assert normed[0] > 3 * plain[0]
    assert normed[1] < 1.2 * plain[1]
    again = forward_and_backward(dora=True, length=64, recompute="full")
    assert again[1] - normed[1] == pytest.approx(normed[0])


def test_with_dropout_the_frozen_matrix_is_multiplied_once_more() -> None:
    kept, dropped = (
        [forward_and_backward(dora=dora, length=16384, dropout=dropout)[0] for dora in (False, True)]
        for dropout in (0.0, 0.1)
    )
    assert dropped[1] - dropped[0] > 1.5 * (kept[1] - kept[0])
