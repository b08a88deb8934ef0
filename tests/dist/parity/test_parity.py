"""The parity contract: the same job is the same training on one process and under every layout."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Attention, Execution
from tests.dist.cells import OPTIMIZERS, PAIRS, ZERO1, ZERO2, digest, execution, move, spread, train_cell
from tests.dist.compare import TOLERANCE, must_equal, must_record_the_same, relative
from tests.dist.reference import reference_losses
from tests.dist.saved.test_checkpoints import DORA

#: Parameters of two of the toys' blocks: more than those of one, with adapters or without.
TWO_BLOCKS, ALL_BLOCKS = 15_000, 10**9

FSDP2 = Layout(dp_shard=2)
CELLS: dict[str, Execution] = {
    "single, accumulation 4": spread(micros=4),
    "ddp(2)": spread(Layout(dp_replicate=2)),
    "ddp(2), accumulation 4": spread(Layout(dp_replicate=2), micros=4),
    "ddp(3), uneven": spread(Layout(dp_replicate=3), micros=2),
    "ddp(2), selective": spread(Layout(dp_replicate=2), gradient_checkpointing="selective"),
    "fsdp(2)": spread(FSDP2),
    "fsdp(2), accumulation 4": spread(FSDP2, micros=4),
    "fsdp(2), accumulation 4, reduced once": spread(FSDP2, micros=4, reduce_once=True),
    "hsdp(2 x 2), reduced once": spread(Layout(dp_replicate=2, dp_shard=2), micros=2, reduce_once=True),
    "fsdp(2), AdamW over lists": spread(FSDP2, optimizer="adamw_foreach"),
    "fsdp(2), recompute": spread(FSDP2, gradient_checkpointing="full"),
    "fsdp(4)": spread(Layout(dp_shard=4)),
    "zero2(2)": spread(Layout(dp_shard=2, **ZERO2)),
    "zero1(2), AdamW over lists": spread(Layout(dp_shard=2, **ZERO1), optimizer="adamw_foreach"),
    "zero1(3), uneven": spread(Layout(dp_shard=3, **ZERO1), micros=2),
    "zero1(2), 2 replicas": spread(Layout(dp_replicate=2, dp_shard=2, **ZERO1)),
    "hsdp(2 x 2)": spread(Layout(dp_replicate=2, dp_shard=2)),
    "two blocks a unit": spread(replace(FSDP2, min_num_params=TWO_BLOCKS)),
    "all blocks a unit, recompute": spread(replace(FSDP2, min_num_params=ALL_BLOCKS), gradient_checkpointing="full"),
    "zero2, two blocks a unit": spread(Layout(dp_shard=2, min_num_params=TWO_BLOCKS, **ZERO2), micros=2),
    "more ahead than there are, recompute": spread(replace(FSDP2, prefetch=9), micros=2, gradient_checkpointing="full"),
    "hsdp, two ahead": spread(Layout(dp_replicate=2, dp_shard=2, prefetch=2)),
    "tp, two blocks a unit, two ahead": spread(Layout(dp_shard=2, tp=2, min_num_params=TWO_BLOCKS, prefetch=2)),
    "1f1b, two blocks, two ahead": spread(Layout(pp=2, dp_shard=2, min_num_params=TWO_BLOCKS, prefetch=2), micros=2),
    "from the host, two ahead": spread(replace(FSDP2, prefetch=2), offload="parameters"),
}


@pytest.mark.parametrize("cell", [pytest.param(k, marks=pytest.mark.core if k == "fsdp(2)" else ()) for k in CELLS])
@pytest.mark.parametrize(("method", "model"), PAIRS)
def test_a_layout_trains_as_one_process_does(method, model, cell, single, make_job, tmp_path) -> None:
    job = make_job(model, method=method, train=OPTIMIZERS["adamw"])
    expected, ranks = single(job), train_cell(job, tmp_path, CELLS[cell])
    assert len(expected.metrics) == 20
    must_record_the_same(expected, ranks[0])
    if CELLS[cell].layout.pp == 1:
        assert ranks[0].frozen == expected.frozen
    for rank in ranks[1:]:
        for name in rank.weights.keys() & ranks[0].weights.keys():
            assert torch.equal(rank.weights[name], ranks[0].weights[name]), f"ranks hold different {name}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell", ["ddp(2), accumulation 4", "zero1(3), uneven", "zero1(2), 2 replicas", "fsdp(4)", "hsdp(2 x 2)"]
)
@pytest.mark.parametrize(("method", "model"), PAIRS)
def test_sgd_with_momentum_ends_in_the_same_weights(method, model, cell, must_train_alike) -> None:
    must_train_alike(CELLS[cell], model, method=method, train=OPTIMIZERS["sgd with momentum"])


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["fsdp(2)", "ddp(2)", "fsdp(2), recompute", "zero2(2)"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_model_whose_blocks_return_views_trains_as_one_process_does(method, cell, must_train_alike) -> None:
    """OPT. FSDP2 warns of views, and a warning fails a test. The bias of its keys has no gradient:
    it adds the same to every score of a query, and softmax takes that out."""
    must_train_alike(CELLS[cell], "opt", method=method, without_gradient="self_attn.k_proj.bias")


def test_clipping_really_clips(single, make_job) -> None:
    assert max(single(make_job("tied", train=OPTIMIZERS["adamw"])).series("grad_norm")) > 1.0


def test_lora_leaves_the_base_bit_for_bit_and_moves_every_adapter(single, make_job, models) -> None:
    trained = single(make_job("untied", method="lora", train=OPTIMIZERS["adamw"]))
    assert len([name for name, weight in trained.weights.items() if "lora_B" in name and bool(weight.any())]) == 3 * 7
    assert all(".lora_" in name for name in trained.weights)
    source = load_file(models["untied"] / "model.safetensors")
    assert {n.replace(".base_layer.", "."): d for n, d in trained.frozen.items()} == {
        name: digest(weight) for name, weight in source.items()
    }


PACKED: dict[str, Execution] = {
    "single, accumulation 2": spread(micros=2),
    "ddp(2)": spread(Layout(dp_replicate=2)),
    "fsdp(2), selective": spread(FSDP2, gradient_checkpointing="selective"),
    "tp(2), recompute": spread(Layout(tp=2), gradient_checkpointing="full"),
    "pp(2)": spread(Layout(pp=2), micros=2),
    "pp(2), zero bubble": spread(Layout(pp=2, schedule="zero_bubble"), micros=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("cell", PACKED)
@pytest.mark.parametrize(("method", "model"), PAIRS)
def test_documents_one_by_one_train_as_one_process_does_with_a_mask(method, model, cell, must_train_alike) -> None:
    chosen = replace(PACKED[cell], attn_implementation="varlen")
    must_train_alike(chosen, model, method=method, data={"packing": True}, train=OPTIMIZERS["adamw"])


@pytest.mark.parametrize("attention", ["sdpa", "varlen"])
def test_packed_equals_unpacked(attention, make_job, tmp_path) -> None:
    """At a rate of zero the mean over an epoch is one figure of data and model."""
    losses: list[float] = []
    for packing in (False, True):
        train = {"max_steps": None, "num_train_epochs": 1, "learning_rate": 1e-30, "global_batch_size": 4}
        job = make_job(data={"packing": packing}, train=train)
        kernel: Attention = attention if packing else "sdpa"
        trained = train_cell(job, tmp_path / str(packing), execution(micro_batch_size=4, attn_implementation=kernel))[0]
        tokens = trained.series("trained_tokens")
        losses.append(sum(a * b for a, b in zip(trained.series("loss"), tokens, strict=True)) / sum(tokens))
        steps = len(tokens)
    assert steps < 53 // 4, "packing did not put several rows into one sequence"
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_plain_pytorch_loop_gives_the_same_losses(make_job, single, tmp_path) -> None:
    job = make_job("untied", train=OPTIMIZERS["adamw"])
    assert relative(reference_losses(job, tmp_path), single(job).series("loss")) <= TOLERANCE


#: What the tables above leave out: decay, evaluation, adapters that move, ranks without a row.
PRODUCTS: dict[str, Execution] = {
    "zero1": spread(Layout(dp_shard=2, **ZERO1)),
    "tp": spread(Layout(tp=2)),
    "fsdp x interleaved": spread(Layout(dp_shard=2, pp=2, schedule="interleaved"), micros=2),
    "zero2 x zero_bubble": spread(Layout(dp_shard=2, pp=2, schedule="zero_bubble", **ZERO2), micros=2),
    "zero1 x tp": spread(Layout(dp_shard=2, tp=2, **ZERO1)),
    "ddp x 1f1b": spread(Layout(dp_replicate=2, pp=2, schedule="1f1b"), micros=2),
    "fsdp x tp x gpipe": spread(Layout(dp_shard=2, tp=2, pp=2, schedule="gpipe"), micros=2),
}
METHODS: dict[str, dict[str, Any]] = {"full": {"method": "full"}, "dora": {"method": "lora", "lora": DORA}}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_adamw_with_decay_gives_the_same_losses_norms_and_weights(name, method, must_train_alike) -> None:
    """Decay acts by a tensor's shape, which windows, slices and shards change."""
    train = {**OPTIMIZERS["adamw"], "weight_decay": 0.1, "max_grad_norm": 0.5}
    must_train_alike(PRODUCTS[name], "deep tied", train=train, **METHODS[method])


@pytest.mark.parametrize("name", PRODUCTS)
def test_evaluation_between_steps_gives_the_same_and_changes_nothing(name, must_train_alike, rows) -> None:
    train, data = {"max_steps": 4, "eval_steps": 1}, {"eval_path": str(rows["eval"])}
    one, ranks = must_train_alike(PRODUCTS[name], "deep untied", data=data, train=train)
    assert len(one.series("eval_loss")) == 4
    assert relative(one.series("eval_loss"), ranks[0].series("eval_loss")) <= TOLERANCE


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("fsdp x interleaved", "zero1 x tp"),
        ("zero1 x tp", "fsdp x interleaved"),
        ("tp", "zero2 x zero_bubble"),
        ("ddp x 1f1b", "tp"),
    ],
)
def test_adapters_copies_and_momentum_move_to_another_layout(before, after, single, make_job, tmp_path) -> None:
    job = make_job("deep tied", train={**OPTIMIZERS["sgd with momentum"], "max_steps": 10}, **METHODS["dora"])
    one, other = (replace(PRODUCTS[name], optimizer="sgd") for name in (before, after))
    must_equal(single(job), move(job, tmp_path, one, other, at=5))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["fsdp x interleaved", "zero2 x zero_bubble", "zero1 x tp", "ddp x 1f1b"])
def test_ranks_that_have_no_row_at_all_take_part(name, method, make_job, tmp_path) -> None:
    job = make_job("deep tied", train={**OPTIMIZERS["sgd"], "max_steps": 6, "global_batch_size": 1}, **METHODS[method])
    (one,), ranks = (
        train_cell(job, tmp_path / key, execution(layout, micro_batch_size=1, optimizer="sgd"))
        for key, layout in {"one": Layout(), "many": PRODUCTS[name].layout}.items()
    )
    assert {len(rank.seen) for rank in ranks} == {0, 6}
    must_equal(one, ranks)
