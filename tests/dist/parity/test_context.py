"""Context parallel: what the support matrix leaves out trains as one process does too."""

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from shardwise.catalog.families.known import FAMILIES
from shardwise.models.known_ahead import state_packed
from shardwise.parallel.context import NAME, Context, own_parts
from shardwise.parallel.mesh import join_world
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.support.splits import MASKED_WITHOUT_POSITIONS, NOT_IN_PARTS
from tests.dist.cells import PAIRS, ZERO1, ZERO2, spread
from tests.dist.compare import TOLERANCE, relative
from tests.dist.worlds import installed, run_world
from tests.unit.catalog.small import small_config, their_config

CP2 = Layout(cp=2)
#: Beside those of test_matrix.py, and of `LISTED`.
CELLS: dict[str, Execution] = {
    "cp(2)": spread(CP2),
    "cp(2), recompute": spread(CP2, micros=2, gradient_checkpointing="full"),
    "cp(2), selective": spread(CP2, gradient_checkpointing="selective"),
    "cp(3)": spread(Layout(cp=3)),
    "cp(2), weights from the host": spread(CP2, offload="parameters"),
    "fsdp(2) x tp(2) x cp(2)": spread(Layout(dp_shard=2, tp=2, cp=2), micros=2),
    "zero_bubble(2) x cp(2)": spread(Layout(pp=2, cp=2, schedule="zero_bubble", **ZERO2), micros=4),
    "cp(2), whole weights": spread(Layout(cp=2, shard_over_cp=False)),
    "fsdp(2) x cp(2), copies over cp": spread(Layout(dp_shard=2, cp=2, shard_over_cp=False), micros=2),
    "zero1, cp(2)": spread(Layout(cp=2, **ZERO1), micros=2),
    "zero2, cp(2)": spread(Layout(cp=2, **ZERO2), micros=2),
    "cp(2), offloaded": spread(CP2, micros=2, gradient_checkpointing="offloaded"),
}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("method", "model"), PAIRS)
def test_parts_of_sequences_train_as_one_process_does(method, model, cell, must_train_alike) -> None:
    must_train_alike(CELLS[cell], model, method=method)


def test_values_of_another_width_than_keys_are_recomputed_in_parts(must_train_alike) -> None:
    must_train_alike(CELLS["cp(2), selective"], "deepseek_v3")


#: Windows, norms of queries and keys, learned positions, and a family without a row.
OTHERS = ("gemma3", "qwen3", "phi3", "gpt2", "nanochat")


@pytest.mark.slow
@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("model", OTHERS)
def test_other_attention_and_documents_of_packed_rows_train_alike(model, packing, must_train_alike, rows) -> None:
    data = {"packing": packing, "eval_path": str(rows["eval"])}
    train = {"max_steps": 6, "warmup_steps": 1, "eval_steps": 3, "disable_dropout": True}
    expected, ranks = must_train_alike(spread(CP2, micros=2), model, data=data, train=train)
    found = [[one["eval_loss"] for one in each.metrics if "eval_loss" in one] for each in (expected, ranks[0])]
    assert len(found[0]) == 2
    assert relative(*found) <= TOLERANCE


#: Each alone and beside each other way, over two parts and four.
LISTED: dict[str, Execution] = {
    f"{name} x cp({cp})".removeprefix("alone x "): spread(Layout(cp=cp, **axes), micros=2)
    for cp in (2, 4)
    for name, axes in {"alone": {}, "fsdp(2)": {"dp_shard": 2}, "tp(2)": {"tp": 2}, "1f1b(2)": {"pp": 2}}.items()
}


@pytest.mark.slow
@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("model", ["wide", "wide qwen3_moe"])
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize("cell", LISTED)
def test_dense_models_and_mixtures_train_on_parts(cell, method, model, packing, must_train_alike) -> None:
    if (cell, method, model) == ("tp(2) x cp(4)", "qlora", "wide qwen3_moe"):
        pytest.skip("refused: two experts of a rank are not cut evenly over 4 shards")
    train = {"max_steps": 4, "warmup_steps": 1}
    must_train_alike(LISTED[cell], model, method=method, data={"packing": packing}, train=train)


IN_PARTS = installed([kind for kind, one in FAMILIES.items() if one.experts is None and kind not in NOT_IN_PARTS])


def _gradients(kind: str, attention: str, rows: list[torch.Tensor]) -> list[torch.Tensor]:
    """The summed loss of rows of ids, positions and labels, and the gradient of every weight."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(their_config(small_config(kind)), attn_implementation=attention).eval()
    ids, positions, labels = rows
    logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits.double(), labels.flatten(), reduction="sum")
    loss.backward()
    return [loss.detach(), *(p.grad.double() for p in model.parameters() if p.grad is not None)]


def _apart() -> dict[tuple[str, bool], float]:
    """How far each family's loss and gradients on parts of rows lie from whole rows, at most."""
    world, found = join_world(CP2), {}
    context = Context(world.mesh["cp"])
    context.register()
    torch.manual_seed(1)
    ids, labels, positions = (*torch.randint(1, 90, (2, 2, 32)), torch.arange(32).repeat(2, 1))
    for packed in (False, True):
        if packed:
            positions = torch.stack([torch.arange(32) % 13, torch.arange(32) % 21])
        whole = [ids, positions, labels]
        parts = [own_parts(one, degree=2, index=world.rank) for one in whole]
        for kind in IN_PARTS:
            if packed and kind in MASKED_WITHOUT_POSITIONS:
                continue
            state_packed(packed)
            expected = _gradients(kind, "sdpa", whole)
            state_packed(packed, told=context.hear)
            mine = _gradients(kind, NAME, parts)
            for one in mine:
                dist.all_reduce(one)
            largest = max(float(one.norm()) for one in expected[1:])
            pairs = zip(expected, mine, strict=True)
            found[kind, packed] = max(float((a - b).norm() / max(float(a.norm()), 1e-3 * largest)) for a, b in pairs)
    return found


@pytest.mark.slow
def test_every_family_but_those_that_are_refused_computes_alike_on_parts() -> None:
    for found in run_world(2, _apart):
        assert len(found) > 40
        assert {one: apart for one, apart in found.items() if apart > TOLERANCE} == {}


TILED: dict[str, Execution] = {
    "single": spread(gradient_checkpointing="full", mlp="chunked"),
    "cp(2)": spread(CP2, micros=2, gradient_checkpointing="full", mlp="chunked"),
    "ddp(2), offloaded": spread(Layout(dp_replicate=2), gradient_checkpointing="offloaded", mlp="chunked"),
    "1f1b(2) x cp(2)": spread(Layout(pp=2, cp=2), micros=2, gradient_checkpointing="full", mlp="chunked"),
}


@pytest.mark.slow
@pytest.mark.parametrize("cell", TILED)
@pytest.mark.parametrize(("method", "model"), [*PAIRS, ("full", "gemma3")])
def test_mlps_in_tiles_train_as_one_process_does(method, model, cell, must_train_alike, monkeypatch) -> None:
    """Gemma's blocks save what their last norm reads of the MLP, so that it is made again there."""
    monkeypatch.setattr("shardwise.spec.layout.execution.LEAST_MLP_CHUNK", 7)
    must_train_alike(TILED[cell], model, method=method, train={"max_steps": 6, "warmup_steps": 1})
