"""The loss module: full and chunked are the same sum, whatever is trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers

from shardwise.models.anatomy import find_anatomy
from shardwise.spec.layout.execution import CHUNK_TOKENS, LossKind
from shardwise.train.loss import IGNORED, LossModule, Targets
from shardwise.train.precision import TYPES
from tests.unit.models.test_anatomy import SMALL

CPU = torch.device("cpu")


def model() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))


def batch(rows: int, length: int, *, trained: float) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 64, (rows, length), generator=generator)
    labels = torch.where(torch.rand(rows, length, generator=generator) < trained, ids.roll(-1, 1), IGNORED)
    return {"input_ids": ids, "position_ids": torch.arange(length).expand(rows, length), "labels": labels}


def loss_and_gradients(kind: LossKind, data: dict[str, torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    module = LossModule(find_anatomy(model()), types=TYPES["fp32"], kind=kind)
    targets = Targets.of(data["labels"], device=CPU)
    loss = module(input_ids=data["input_ids"], position_ids=data["position_ids"], targets=targets)
    loss.backward()
    return loss, [p.grad for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize(("rows", "length"), [(2, 16), (5, 2 * CHUNK_TOKENS // 3)])
@pytest.mark.parametrize("kind", ["full", "chunked"])
def test_the_loss_is_the_sum_over_trained_positions(kind: LossKind, rows: int, length: int) -> None:
    data = batch(rows, length, trained=0.8)
    plain = model()
    logits = plain(input_ids=data["input_ids"]).logits.flatten(0, 1)
    expected = F.cross_entropy(logits, data["labels"].flatten(), reduction="sum", ignore_index=IGNORED)
    expected.backward()
    loss, gradients = loss_and_gradients(kind, data)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for ours, parameter in zip(gradients, plain.parameters(), strict=True):
        assert torch.allclose(ours, parameter.grad, rtol=1e-4, atol=1e-4 * parameter.grad.abs().max())


@pytest.mark.parametrize(("length", "keeps"), [(CHUNK_TOKENS // 2, True), (CHUNK_TOKENS // 2 + 1, False)])
@pytest.mark.parametrize("trained", [0.01, 0.5])
def test_logits_are_kept_for_backward_where_the_micro_batch_is_one_chunk_however_much_of_it_is_trained(
    length: int, keeps: bool, trained: float
) -> None:
    data, module = (
        batch(2, length, trained=trained),
        LossModule(find_anatomy(model()), types=TYPES["fp32"], kind="chunked"),
    )
    kept: list[tuple[int, ...]] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        targets = Targets.of(data["labels"], device=CPU)
        module(input_ids=data["input_ids"], position_ids=data["position_ids"], targets=targets)
    assert ((len(targets.tokens), SMALL["vocab_size"]) in kept) == keeps


@pytest.mark.parametrize("kind", ["full", "chunked"])
def test_a_micro_batch_without_trained_tokens_gives_zero_and_zero_gradients(kind: LossKind) -> None:
    loss, gradients = loss_and_gradients(kind, batch(2, 8, trained=0.0))
    assert loss.item() == 0.0
    assert len(gradients) == len(list(model().parameters()))
    assert not any(bool(g.any()) for g in gradients)


def test_mixed_precision_keeps_the_residual_stream_in_the_compute_type() -> None:
    anatomy = find_anatomy(model())
    seen: list[torch.dtype] = []
    anatomy.blocks[1].register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0].dtype))
    module = LossModule(anatomy, types=TYPES["mixed"], kind="full")
    data = batch(1, 8, trained=1.0)
    loss = module(
        input_ids=data["input_ids"],
        position_ids=data["position_ids"],
        targets=Targets.of(data["labels"], device=CPU),
    )
    assert seen == [torch.bfloat16]
    assert loss.dtype == torch.float32
