"""What attention by its kernel, and DoRA's norms, add to the time and the memory of a step."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from peft.tuners.lora.dora import DoraLinearLayer
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardwise.plan.costs.products import multiplications, norm_bytes
from shardwise.plan.time.pieces import pieces_of
from tests.unit.plan.asking import execution, job, memory, plan, shape, work

LENGTH, WINDOW = 48, 10
PACKED = {"data": {"max_length": LENGTH, "packing": True}}
PLAIN = {"data": {"max_length": LENGTH}}


def pairs(window: int) -> int:
    """Of queries and keys that count, one by one."""
    return sum(1 for query in range(LENGTH) for key in range(query + 1) if query - key < window)


def asked(kind, keys=PLAIN, **model):
    return work(job(**keys), shape(**model), execution(attn_implementation=kind))


def counted(kind, keys=PLAIN, **model):
    made = asked(kind, keys, **model)
    each = 2 * made.model.num_attention_heads * made.model.head_dim
    return tuple(found / each for found in multiplications(made))


def test_what_a_kernel_computes_is_what_counting_pairs_finds() -> None:
    every, causal, windowed = LENGTH**2, pairs(LENGTH), pairs(WINDOW)
    assert counted("sdpa") == pytest.approx((causal, 0))
    assert counted("flash_attention_2") == pytest.approx((causal, 0))
    assert counted("eager") == (every, 0)
    window = {"model_type": "mistral", "sliding_window": WINDOW}
    assert counted("flash_attention_2", **window) == pytest.approx((windowed, 0))
    assert counted("sdpa", **window) == (0, every)
    assert counted("sdpa", PACKED) == (0, every)
    assert counted("flex_attention", PACKED) == pytest.approx((causal, 0))
    known = replace(asked("varlen", PACKED), document=LENGTH / 4)  # four documents, each a sixteenth of the scores
    each = sum(query + 1 for query in range(LENGTH // 4))
    assert multiplications(known)[0] / (2 * known.model.num_attention_heads * known.model.head_dim) == 4 * each
    masked = replace(asked("sdpa", PACKED), document=LENGTH / 4)
    assert multiplications(masked) == multiplications(asked("sdpa", PACKED))
    config = {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": WINDOW, "sliding_window_pattern": 3}
    plain, masked = counted("sdpa", **config)
    share = asked("sdpa", **config).model.windowed_layers / 6
    assert 0 < share < 1
    assert (plain, masked) == pytest.approx((pairs(LENGTH) * (1 - share), LENGTH**2 * share))


def test_a_mask_costs_time_and_memory_where_a_kernel_is_handed_one_and_only_there():
    def cost(kind, **data):
        keys = {"data": {"max_length": 16384, **data}}
        attended = pieces_of(work(job(**keys), shape(), execution(attn_implementation=kind))).forward.seconds
        return attended, memory(job(**keys), shape(), attn_implementation=kind).peak_bytes

    seconds, held = cost("sdpa")
    masked_seconds, masked_held = cost("sdpa", packing=True)
    assert masked_seconds > 2 * seconds
    assert masked_held - held > 16384**2
    for kind in ("flex_attention", "varlen"):
        assert cost(kind, packing=True) == cost("flex_attention")


@pytest.mark.parametrize(("kind", "again"), [("sdpa", 0), ("flash_attention_2", 1), ("eager", 1)])
def test_selective_recompute_runs_attention_again_unless_its_result_is_kept(kind, again):
    """Beside what lies between the products, which is run again in any case."""

    def backward(length, recompute):
        chosen = execution(attn_implementation=kind, gradient_checkpointing=recompute)
        pieces = pieces_of(work(job(data={"max_length": length}), shape(), chosen))
        return pieces.forward.computing, pieces.backward.computing

    forward, selective = backward(32768, "selective")
    _, none = backward(32768, "none")
    _, full = backward(32768, "full")
    attention_is_most = (selective - none) / forward > 0.5
    assert attention_is_most == bool(again)
    assert none < selective < full


def test_a_plan_says_what_a_mask_costs_where_that_is_much():
    def said(text, length=32768):
        data = f"data: {{max_length: {length}}}\n" if length else ""
        reasons = plan("mistral-7b", "8x H100-SXM", f"method: lora\n{data}{text}").best.reasons
        return [reason for reason in reasons if "handed a mask" in reason]

    (window,) = said("")
    assert window.startswith("for windows of 4096 tokens sdpa is handed a mask and computes all scores, ")
    assert said("train: {attn_implementation: flash_attention_2}\n") == []
    assert said("", length=2048) == []
    (packed,) = said("data: {packing: true, max_length: 32768}\n", length=None)
    assert packed.startswith("for packed documents sdpa is handed a mask ")
    assert packed.endswith("; varlen has no window, and this model's is 4096 tokens")


ROWS, COLUMNS, RANK = 96, 64, 4
WIDE, SHORT = torch.float32, torch.bfloat16
OF_TYPES = [("fp32", WIDE, WIDE), ("bf16", SHORT, SHORT), ("mixed", WIDE, SHORT)]


class Moved(TorchDispatchMode):
    """Counts the bytes that operators other than products and views read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made, name = func(*args, **(kwargs or {})), func.name()
        if not (func.is_view or name.startswith(("aten::mm", "aten::detach", "aten::empty"))):
            seen = [one for one in tree_leaves((args, made)) if isinstance(one, torch.Tensor)]
            self.bytes += sum(one.nbytes for one in {id(one): one for one in seen}.values())
        return made


def moved_by_peft(*, adapters: torch.dtype, weights: torch.dtype, autocasts: bool) -> int:
    """Bytes that PEFT moves for the norms of one matrix, for either type of its adapter."""
    halves = [nn.Linear(COLUMNS, RANK, bias=False), nn.Linear(RANK, ROWS, bias=False)]
    a, b = (half.to(adapters) for half in halves)
    weight, layer = torch.ones(ROWS, COLUMNS, dtype=weights), DoraLinearLayer(fan_in_fan_out=False)
    with Moved() as moved, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocasts):
        product = layer.get_lora_weight(lora_A=a, lora_B=b).to(adapters)
        layer.get_weight_norm(weight=weight.to(adapters), lora_weight=product.detach(), scaling=2.0)
    return moved.bytes


@pytest.mark.parametrize(("name", "adapters", "weights"), OF_TYPES)
def test_norms_move_what_pefts_operators_move(name: Any, adapters: torch.dtype, weights: torch.dtype) -> None:
    made = work(job(method="lora", lora={"use_dora": True}), shape(), execution(precision=name))
    measured = moved_by_peft(adapters=adapters, weights=weights, autocasts=name == "mixed")
    assert norm_bytes(made, rows=ROWS, columns=COLUMNS) == pytest.approx(measured, rel=0.1)


def forward_and_backward(*, dora, length, recompute="none", dropout=0.0) -> tuple[float, float]:
    lora = {"r": 8, "use_dora": dora, "lora_dropout": dropout}
    model = shape(hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8)
    asked = job(method="lora", lora=lora, data={"max_length": length})
    made = pieces_of(work(asked, model, execution(gradient_checkpointing=recompute), "1x H100-SXM"))
    return made.forward.computing, made.backward.computing


def test_norms_and_the_product_of_dropout_are_in_forward_and_where_it_is_computed_again() -> None:
    """Short steps take no longer; backward has its own only where blocks are recomputed."""
    plain, normed = (forward_and_backward(dora=dora, length=64) for dora in (False, True))
    assert normed[0] > 3 * plain[0]
    assert normed[1] < 1.2 * plain[1]
    assert forward_and_backward(dora=True, length=64, recompute="full")[1] - normed[1] == pytest.approx(normed[0])

    def forwards(dropout: float) -> list[float]:
        return [forward_and_backward(dora=dora, length=16384, dropout=dropout)[0] for dora in (False, True)]

    kept, dropped = forwards(0.0), forwards(0.1)
    assert dropped[1] - dropped[0] > 1.5 * (kept[1] - kept[0])
