"""The parity contract: the same job is the same training on one process and under every layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from shardwise.spec.execution import Execution
from shardwise.spec.job import Job
from shardwise.spec.layout import Layout
from tests.dist.cells import TOLERANCE, Trained, digest, execution, must_equal, parity_job, relative, train_cell
from tests.marks import first

#: What everything else stands on: with every method and model, every time.
CORE = ("ddp(2)", "fsdp(2)")

CELLS: dict[str, Execution] = {
    "single, accumulation 2": execution(micro_batch_size=4, gradient_accumulation_steps=2),
    "single, accumulation 4": execution(micro_batch_size=2, gradient_accumulation_steps=4),
    "ddp(2)": execution(Layout(dp_replicate=2), micro_batch_size=4),
    "ddp(2), accumulation 4": execution(Layout(dp_replicate=2), micro_batch_size=1, gradient_accumulation_steps=4),
    "ddp(3), uneven": execution(Layout(dp_replicate=3), micro_batch_size=2, gradient_accumulation_steps=2),
    "fsdp(2)": execution(Layout(dp_shard=2), micro_batch_size=4),
    "fsdp(2), accumulation 2": execution(Layout(dp_shard=2), micro_batch_size=2, gradient_accumulation_steps=2),
    "fsdp(2), accumulation 4": execution(Layout(dp_shard=2), micro_batch_size=1, gradient_accumulation_steps=4),
    "fsdp(4)": execution(Layout(dp_shard=4), micro_batch_size=2),
    "fsdp(4), accumulation 2": execution(Layout(dp_shard=4), micro_batch_size=1, gradient_accumulation_steps=2),
    "zero2(2)": execution(Layout(dp_shard=2, zero_stage=2, reshard_after_forward=False), micro_batch_size=4),
    "zero1(2), accumulation 2": execution(
        Layout(dp_shard=2, zero_stage=1, reshard_after_forward=False), micro_batch_size=2, gradient_accumulation_steps=2
    ),
    "zero1(3), uneven": execution(
        Layout(dp_shard=3, zero_stage=1, reshard_after_forward=False), micro_batch_size=2, gradient_accumulation_steps=2
    ),
    "zero1(2), 2 replicas": execution(
        Layout(dp_replicate=2, dp_shard=2, zero_stage=1, reshard_after_forward=False), micro_batch_size=2
    ),
    "hsdp(2 x 2)": execution(Layout(dp_replicate=2, dp_shard=2), micro_batch_size=2),
    "fsdp(2), AdamW over lists": execution(Layout(dp_shard=2), micro_batch_size=4, optimizer="adamw_foreach"),
    "zero1(2), AdamW over lists": execution(
        Layout(dp_shard=2, zero_stage=1, reshard_after_forward=False), micro_batch_size=4, optimizer="adamw_foreach"
    ),
    "fsdp(2), recompute, chunked": execution(
        Layout(dp_shard=2), micro_batch_size=4, gradient_checkpointing="full", loss="chunked"
    ),
    "ddp(2), selective, chunked": execution(
        Layout(dp_replicate=2), micro_batch_size=4, gradient_checkpointing="selective", loss="chunked"
    ),
}


@pytest.mark.parametrize("cell", [pytest.param(name, marks=pytest.mark.core if name in CORE else ()) for name in CELLS])
@pytest.mark.parametrize("model", ["untied", "tied"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_layout_trains_as_one_process_does(
    method: str, model: str, cell: str, single: Callable[..., Trained], make_job: Callable[..., Job], tmp_path: Path
) -> None:
    expected = single(method, model)
    ranks = train_cell(parity_job(make_job, method, model, "adamw"), tmp_path, CELLS[cell])
    found = ranks[0]
    assert len(found.metrics) == 20
    assert relative(expected.series("loss"), found.series("loss")) <= TOLERANCE
    assert relative(expected.series("grad_norm"), found.series("grad_norm")) <= TOLERANCE
    for exact in ("step", "epoch", "learning_rate", "tokens", "trained_tokens"):
        assert found.series(exact) == expected.series(exact)
    assert found.frozen == expected.frozen
    for rank in ranks[1:]:
        for name, weight in rank.weights.items():
            assert torch.equal(weight, found.weights[name]), f"ranks hold different {name}"


@pytest.mark.parametrize("optimizer", first(1, ["sgd with momentum", "sgd"]))
@pytest.mark.parametrize(
    "cell", ["ddp(2), accumulation 4", "zero1(3), uneven", "zero1(2), 2 replicas", "fsdp(4)", "hsdp(2 x 2)"]
)
@pytest.mark.parametrize("model", ["untied", "tied"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_sgd_ends_in_the_same_weights(
    method: str,
    model: str,
    cell: str,
    optimizer: str,
    single: Callable[..., Trained],
    make_job: Callable[..., Job],
    tmp_path: Path,
) -> None:
    chosen = replace(CELLS[cell], optimizer="sgd")
    ranks = train_cell(parity_job(make_job, method, model, optimizer), tmp_path, chosen)
    must_equal(single(method, model, optimizer), ranks)


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["fsdp(2)", "ddp(2)", "fsdp(2), recompute, chunked", "zero2(2)"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_model_whose_blocks_return_views_trains_as_one_process_does(
    method: str, cell: str, single: Callable[..., Trained], make_job: Callable[..., Job], tmp_path: Path
) -> None:
    """OPT. FSDP2 warns of views, and a warning fails a test. The bias of its keys adds as much to every score of a
    query, its positions being in the embedding: the softmax takes that out."""
    chosen = replace(CELLS[cell], optimizer="sgd")
    ranks = train_cell(parity_job(make_job, method, "opt", "sgd"), tmp_path, chosen)
    must_equal(single(method, "opt", "sgd"), ranks, without_gradient="self_attn.k_proj.bias")


def test_clipping_really_clips(single: Callable[..., Trained]) -> None:
    assert max(single("full", "untied").series("grad_norm")) > 1.0


def test_lora_leaves_the_base_bit_for_bit_and_moves_every_adapter(
    single: Callable[..., Trained], models: dict[str, Path]
) -> None:
    trained = single("lora", "untied")
    moved = [name for name, weight in trained.weights.items() if "lora_B" in name and bool(weight.any())]
    assert len(moved) == 3 * 7
    assert all(".lora_" in name for name in trained.weights)
    source = load_file(models["untied"] / "model.safetensors")
    assert {n.replace(".base_layer.", "."): d for n, d in trained.frozen.items()} == {
        name: digest(weight) for name, weight in source.items()
    }


@pytest.mark.parametrize(("size", "micro"), [(1, 8), (2, 3), (3, 1), (4, 2)])
def test_each_sample_is_seen_exactly_once_per_epoch(
    size: int, micro: int, make_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = make_job(train={"max_steps": None, "num_train_epochs": 1})
    steps = -(-8 // (micro * size))
    layout = Layout(dp_replicate=size)
    chosen = execution(layout, micro_batch_size=micro, gradient_accumulation_steps=steps)
    ranks = train_cell(job, tmp_path, chosen)
    assert sorted(sample for rank in ranks for sample in rank.seen) == list(range(53))


def test_packed_equals_unpacked(make_job: Callable[..., Job], tmp_path: Path) -> None:
    """With a rate of zero nothing moves, so the mean over an epoch is one figure of the data and the model."""
    losses: list[float] = []
    for packing in (False, True):
        train = {"max_steps": None, "num_train_epochs": 1, "learning_rate": 1e-30, "global_batch_size": 4}
        job = make_job(data={"packing": packing}, train=train)
        trained = train_cell(job, tmp_path / str(packing), execution(micro_batch_size=4))[0]
        tokens = trained.series("trained_tokens")
        losses.append(sum(a * b for a, b in zip(trained.series("loss"), tokens, strict=True)) / sum(tokens))
        steps = len(tokens)
    assert steps < 53 // 4, "packing did not put several rows into one sequence"
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("layout", [Layout(dp_replicate=2), Layout(dp_shard=4)], ids=["ddp(2)", "fsdp(4)"])
def test_evaluation_is_the_same_for_any_number_of_ranks(
    layout: Layout, make_job: Callable[..., Job], rows: dict[str, Path], tmp_path: Path
) -> None:
    job = make_job(data={"eval_path": str(rows["eval"])}, train={"max_steps": 4, "eval_steps": 2})
    one = train_cell(job, tmp_path / "one", execution())[0]
    many = train_cell(job, tmp_path / "many", execution(layout, micro_batch_size=2))[0]
    evaluated = [[r["eval_loss"] for r in t.metrics if "eval_loss" in r] for t in (one, many)]
    assert len(evaluated[0]) == 2
    assert relative(*evaluated) <= TOLERANCE


def test_a_plain_pytorch_loop_gives_the_same_losses(
    make_job: Callable[..., Job], single: Callable[..., Trained], tmp_path: Path
) -> None:
    from tests.dist.reference import reference_losses

    expected = reference_losses(parity_job(make_job, "full", "untied", "adamw"), tmp_path)
    assert relative(expected, single("full", "untied").series("loss")) <= TOLERANCE
