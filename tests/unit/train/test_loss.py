"""The loss module: the sum and gradients of whole logits, with a chunk of them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode

from shardwise.models.anatomy import find_anatomy
from shardwise.parallel import compiled
from shardwise.train import cross_entropy
from shardwise.train.cross_entropy import IGNORED, Chunks, Targets, Whole, linear_loss
from shardwise.train.loss import LossModule
from shardwise.train.precision import TYPES
from tests.unit.models.test_anatomy import SMALL

CPU = torch.device("cpu")


def model(config: Any = None, *, adapters: dict[str, Any] | None = None) -> Any:
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(config or transformers.LlamaConfig(**SMALL))
    if adapters is not None:
        get_peft_model(made, LoraConfig(r=4, init_lora_weights=False, **adapters))
    return made


def batch(rows: int, length: int, *, trained: float) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 64, (rows, length), generator=generator)
    labels = torch.where(torch.rand(rows, length, generator=generator) < trained, ids.roll(-1, 1), IGNORED)
    return {"input_ids": ids, "position_ids": torch.arange(length).expand(rows, length), "labels": labels}


def loss_of(module: LossModule, data: dict[str, torch.Tensor]) -> torch.Tensor:
    targets = Targets.of(data["labels"], device=CPU)
    return module(input_ids=data["input_ids"], position_ids=data["position_ids"], targets=targets)


#: What stands between hidden states and logits, and what of it is trained.
HEADS: dict[str, tuple[Any, dict[str, Any] | None]] = {
    "linear": (None, None),
    "tied": (transformers.LlamaConfig(**SMALL, tie_word_embeddings=True), None),
    "bias": (transformers.PhiConfig(**SMALL), None),
    "frozen": (None, {"target_modules": ["q_proj"]}),
    "copied": (None, {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    "adapted": (None, {"target_modules": ["q_proj", "lm_head"]}),
    "capped": (transformers.Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=0.5), None),
    "scaled": (transformers.CohereConfig(**SMALL, logit_scale=0.25), None),
    "divided before": (transformers.GraniteConfig(**SMALL, logits_scaling=3.0), {"target_modules": ["lm_head"]}),
}


@pytest.mark.parametrize("trained", [0.0, 0.6, 0.97, 1.0])
@pytest.mark.parametrize("head", HEADS)
def test_losses_and_gradients_are_those_of_whole_logits(head: str, trained: float) -> None:
    data, (config, adapters) = batch(3, 32, trained=trained), HEADS[head]
    plain = model(config, adapters=adapters)
    logits = plain(input_ids=data["input_ids"]).logits.flatten(0, 1)
    expected = F.cross_entropy(logits, data["labels"].flatten(), reduction="sum", ignore_index=IGNORED)
    (expected * 0.1).backward()
    module = LossModule(find_anatomy(model(config, adapters=adapters)), types=TYPES["fp32"], chunk=40)
    with torch.no_grad():
        evaluated = loss_of(module, data)
    loss = loss_of(module, data)
    assert loss.dtype == torch.float32
    assert evaluated.item() == loss.item() == pytest.approx(expected.item(), rel=1e-5)
    (loss * 0.1).backward()
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        assert (ours.grad is None) == (not theirs.requires_grad)
        if ours.grad is not None:
            assert torch.allclose(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4 * theirs.grad.abs().max())


@pytest.mark.filterwarnings("ignore")  # dynamo's own
@pytest.mark.parametrize("precision", ["fp32", "mixed"])
@pytest.mark.parametrize("head", ["linear", "capped"])
def test_a_compiled_softmax_makes_the_same_losses_and_gradients(head, precision, monkeypatch) -> None:
    """Three chunks, the last smaller; `aot_eager` is the compiler without its last stage."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    data, (config, adapters), calls = batch(3, 32, trained=0.9), HEADS[head], []
    found: list[list[torch.Tensor]] = []
    with monkeypatch.context() as patch:
        real = cross_entropy._losses
        patch.setattr(cross_entropy, "_losses", lambda *args, **keys: calls.append(1) or real(*args, **keys))
        for once in (False, True):
            anatomy = find_anatomy(model(config, adapters=adapters))
            module = LossModule(anatomy, types=TYPES[precision], chunk=40, compiled=once)
            evaluated, loss = loss_of(module, data).detach(), loss_of(module, data)
            assert evaluated == loss
            loss.backward()
            gradients = [p.grad for p in module.parameters() if p.grad is not None]
            found.append([loss.detach(), *gradients])
            assert len(calls) == 2 * 3, "the compiled one calls another function"
    near = {"fp32": 1e-5, "mixed": 1e-2}[precision]
    for plain, fused in zip(*found, strict=True):
        assert (plain - fused).norm() <= near * plain.norm()


@pytest.mark.parametrize("trains_head", [True, False])
def test_under_autocast_gradients_are_as_near_to_float32_as_those_of_whole_logits(trains_head: bool) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(64, 32), torch.randn(96, 32)
    labels = torch.randint(0, 96, (64,))

    def gradients(kind: str, *, autocast: bool) -> list[torch.Tensor]:
        given, head = hidden.clone().requires_grad_(), weight.clone().requires_grad_(trains_head)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            if kind == "ours":
                chunks = Chunks(labels=labels, positions=None, size=24)
                loss = linear_loss(given, chunks, weight=head, bias=None, vocabulary=Whole())
            else:
                loss = F.cross_entropy(F.linear(given, head).float(), labels, reduction="sum")
        loss.backward()
        return [one.grad for one in (given, head) if one.grad is not None]

    exact = gradients("whole", autocast=False)
    assert len(exact) == 1 + trains_head
    found = (gradients(kind, autocast=True) for kind in ("ours", "whole"))
    for right, ours, whole in zip(exact, *found, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - right).norm() < 1.2 * (whole - right).norm()


class Watch(TorchDispatchMode):
    """Counts operators, and finds the largest tensor with a given last dim."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.rows, self.names = width, 0, list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.names.append(func.overloadpacket.__name__)
        if isinstance(made, torch.Tensor) and made.dim() == 2 and made.shape[1] == self.width:
            self.rows = max(self.rows, made.shape[0])
        return made


@pytest.mark.parametrize(("trained", "chooses"), [(1.0, False), (0.97, False), (0.5, True)])
def test_a_chunk_of_logits_exists_and_each_product_is_made_once(trained: float, chooses: bool) -> None:
    data = batch(4, 32, trained=trained)
    hidden, weight = (torch.randn(rows, 16).requires_grad_() for rows in (128, 300))
    targets = Targets.of(data["labels"], device=CPU)
    assert (targets.positions is not None) == chooses
    chunks = Chunks(**vars(targets), size=32)
    with Watch(300) as watch:
        linear_loss(hidden, chunks, weight=weight, bias=None, vocabulary=Whole()).backward()
    count = len(list(chunks))
    assert count == (2 if chooses else 4)
    assert watch.rows == 32
    assert sum(name in ("mm", "addmm", "addmm_") for name in watch.names) == 3 * count
    assert watch.names.count("addmm_") == count - 1
    assert ("index" in watch.names) == chooses
    assert "index_select" not in watch.names


def test_mixed_precision_keeps_the_residual_stream_in_the_compute_type() -> None:
    anatomy = find_anatomy(model())
    seen: list[torch.dtype] = []
    anatomy.blocks[1].register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0].dtype))
    loss = loss_of(LossModule(anatomy, types=TYPES["mixed"], chunk=8), batch(1, 8, trained=1.0))
    assert seen == [torch.bfloat16]
    assert loss.dtype == torch.float32
