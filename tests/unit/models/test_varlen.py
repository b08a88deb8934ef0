"""Packed rows through `varlen_attn`: each document as if alone, with no scores held."""

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from shardwise.catalog.families.known import FAMILIES
from shardwise.data.micro_batches import Documents
from shardwise.models.varlen import register
from shardwise.spec.support.attention import documents_refusal
from shardwise.spec.support.trained import refused_everywhere
from tests.dist.worlds import installed
from tests.unit.catalog.small import small_config, their_config
from tests.unit.plan.asking import job, shape_from_data

LENGTHS = [[5, 1, 9, 3], [11, 7]]
JOB = job(data={"packing": True, "max_length": 40}, train={"disable_dropout": True})
DENSE = {kind: small_config(kind) for kind in installed(tuple(FAMILIES)) if FAMILIES[kind].experts is None}


def is_told(config: dict[str, Any]) -> bool:
    shape = shape_from_data(config, file="-")
    return not (refused_everywhere(JOB, shape) or documents_refusal(JOB, shape, "varlen"))


def build(config: dict[str, Any], attention: str) -> Any:
    register()
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(their_config(config), attn_implementation=attention).eval()


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and positions of two rows, [2, 18]."""
    positions = torch.tensor([[at for length in row for at in range(length)] for row in LENGTHS])
    return torch.randint(1, 97, positions.shape, generator=torch.Generator().manual_seed(1)), positions


class Operators(TorchDispatchMode):
    """The names of operators that run, and the elements of the largest tensor they made."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.names.add(func.overloadpacket.__name__)
        self.largest = max([self.largest, *(one.numel() for one in tree_leaves(made) if isinstance(one, torch.Tensor))])
        return made


@pytest.mark.parametrize("config", [*filter(is_told, DENSE.values())], ids=lambda config: config["model_type"])
def test_documents_of_packed_rows_are_trained_as_if_each_were_alone(config: dict[str, Any]) -> None:
    ids, positions = rows()
    documents = [part for row, sizes in zip(ids, LENGTHS, strict=True) for part in row.split(sizes)]
    found = []
    for attention in ("sdpa", "varlen"):
        model = build(config, attention)
        if attention == "varlen":
            logits = model(ids, position_ids=positions, use_cache=False, **Documents.of(positions).words).logits
            parts = [part for row, sizes in zip(logits, LENGTHS, strict=True) for part in row.split(sizes)]
        else:
            parts = [model(document[None], use_cache=False).logits[0] for document in documents]
        pairs = zip(parts, documents, strict=True)
        loss = sum(cross_entropy(part[:-1], document[1:], reduction="sum") for part, document in pairs)
        loss.backward()
        found.append((loss.detach(), {name: weight.grad for name, weight in model.named_parameters()}))
    (loss, gradients), (packed_loss, packed) = found
    torch.testing.assert_close(packed_loss, loss, rtol=1e-6, atol=0)
    for name, gradient in gradients.items():
        assert torch.allclose(packed[name], gradient, rtol=1e-4, atol=1e-5), name


@pytest.mark.parametrize("autocast", [False, True])
def test_a_packed_forward_makes_no_mask_and_waits_for_nothing(autocast: bool) -> None:
    length = 512
    positions = torch.arange(length).remainder(90)[None]
    words, seen = Documents.of(positions).words, {}
    for attention in ("sdpa", "varlen"):
        model = build({**DENSE["qwen3"], "max_position_embeddings": length}, attention)
        told = words if attention == "varlen" else {}
        with torch.autocast("cpu", enabled=autocast), Operators() as seen[attention]:
            logits = model.model(positions, position_ids=positions, use_cache=False, **told).last_hidden_state
            logits.float().square().mean().backward()
    assert seen["sdpa"].largest >= length**2 and seen["varlen"].largest < length**2
    assert "_local_scalar_dense" in seen["sdpa"].names
    assert not {"_local_scalar_dense", "nonzero", "item"} & seen["varlen"].names
    assert {"_varlen_attn", "_varlen_attn_backward"} <= seen["varlen"].names


def test_where_documents_end_is_known_on_the_host() -> None:
    told = Documents.of(rows()[1])
    assert told.ends.tolist() == [0, 5, 6, 15, 18, 29, 36] and told.ends.dtype == torch.int32
    assert told.longest == 16
