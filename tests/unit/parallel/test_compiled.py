"""Compiled blocks give what eager ones give, in a few graphs whatever the rows' lengths."""

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import AutoModelForCausalLM

from shardwise.catalog.families.known import FAMILIES
from shardwise.models.anatomy import find_anatomy
from shardwise.parallel import compiled
from tests.marks import first
from tests.unit.catalog.small import small_config, their_config

#: Blocks with a window, rotary positions or without, and a length that equals MPT's biases.
SEVERAL_KINDS = {"cohere2", "exaone4", "gemma2", "gemma3_text", "gpt_neo", "mpt", "olmo3", "smollm3"}
FAMILIES_WITHOUT_EXPERTS = [kind for kind, family in FAMILIES.items() if family.experts is None]


def step(model, length):
    ids = torch.randint(1, 97, (2, length))
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    total = sum(float(p.grad.double().abs().sum()) for p in model.parameters() if p.grad is not None)
    model.zero_grad()
    return float(loss), total


@pytest.mark.filterwarnings("ignore")  # dynamo's own
@pytest.mark.parametrize("kind", first(1, FAMILIES_WITHOUT_EXPERTS, ci=1))
def test_six_lengths_cause_two_compilations_of_each_kind_of_block(kind, monkeypatch):
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    config = small_config(kind, **({"rotary_dim": 8} if kind == "gptj" else {}))
    model = AutoModelForCausalLM.from_config(their_config(config)).eval()
    lengths, found = (16, 24, 40, 32, 8, 36), []
    for compiles in (False, True):
        torch.manual_seed(1)
        if compiles:
            compiled.apply_compile(find_anatomy(model).blocks)
        found.append([figure for length in lengths for figure in step(model, length)])
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    assert 0 < counters["stats"]["unique_graphs"] <= (4 if kind in SEVERAL_KINDS else 2)
    assert not counters["graph_break"]
