"""Every cell of docs/support.md, and more of slices and stages, trains as one process does."""

import pytest
from tools.matrix import METHODS, cells

from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.support.trained import refusal
from tests.dist.cells import PAIRS, ZERO1, ZERO2, spread

#: Of each layout one method trains a tied model and the other an untied one, by turns.
MODELS = ("deep tied", "deep untied")
#: Of which slices cut no quantised blocks.
WIDE = "deep wide"
TABLE = [
    pytest.param(
        *(method, WIDE if method == "qlora" else MODELS[(row + column) % 2], layout), id=f"{method}-{data} x {split}"
    )
    for row, (data, split, layout) in enumerate(cells())
    for column, method in enumerate(METHODS)
    if refusal(method=method, layout=layout) is None
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "model", "layout"), TABLE)
def test_a_cell_of_the_support_matrix_trains_as_one_process_does(method, model, layout, must_train_alike) -> None:
    # Slices exchange most, and take most of the time: they get larger micro-batches.
    micros = 8 // layout.data_world_size // (2 if layout.tp > 1 and layout.data_world_size < 4 else 1)
    must_train_alike(spread(layout, micros=micros), model, method=method, train={"max_steps": 20, "max_grad_norm": 0.5})


SLICES: dict[str, Execution] = {
    "tp(2)": spread(Layout(tp=2)),
    "tp(2), recompute": spread(Layout(tp=2), micros=2, gradient_checkpointing="full"),
    "tp(2), selective": spread(Layout(tp=2), gradient_checkpointing="selective"),
    "fsdp(2) x tp(2)": spread(Layout(dp_shard=2, tp=2), micros=2),
    "fsdp(2) x tp(2), reduced once": spread(Layout(dp_shard=2, tp=2), micros=2, reduce_once=True),
    "zero1(3) x tp(2), uneven": spread(Layout(dp_shard=3, tp=2, **ZERO1), micros=2),
    "mp(2) x tp(2)": spread(Layout(pp=2, tp=2, schedule="sequential")),
    "1f1b(2) x tp(2)": spread(Layout(pp=2, tp=2), micros=4),
    "zero_bubble(2) x tp(2)": spread(Layout(pp=2, tp=2, schedule="zero_bubble"), micros=4),
    "tp(4)": spread(Layout(tp=4)),
}
#: Of other families; four slices need four heads.
OF_OTHERS = {"tp(2)": "qwen2", "fsdp(2) x tp(2)": "qwen3", "1f1b(2) x tp(2)": "qwen2"}
SLICED = [(method, model, cell) for cell in SLICES if cell != "tp(4)" for method, model in PAIRS]
SLICED += [(method, model, cell) for cell, model in OF_OTHERS.items() for method in ("full", "lora")]
SLICED += [(method, "four key-value heads", "tp(4)") for method in ("full", "lora")]
SLICED += [(method, of, cell) for of in ("phi3", "olmo2") for method in ("full", "lora") for cell in [*SLICES][:7]]
SLICED += [("qlora", "wide phi3", "tp(2)"), ("qlora", "wide phi3", "fsdp(2) x tp(2)")]


@pytest.mark.parametrize(("method", "model", "cell"), SLICED)
def test_slices_train_as_one_process_does(method, model, cell, must_train_alike) -> None:
    must_train_alike(SLICES[cell], model, method=method)


STAGES: dict[str, Execution] = {
    "mp(2)": spread(Layout(pp=2, schedule="sequential")),
    "zero_bubble(2)": spread(Layout(pp=2, schedule="zero_bubble"), micros=4),
    "mp(3), accumulation 2": spread(Layout(pp=3, schedule="sequential"), micros=2),
    "1f1b(4), 4 micro-batches": spread(Layout(pp=4), micros=4),
    "1f1b(2), fewer micro-batches than ranks": spread(Layout(pp=2)),
    "1f1b(2), recompute": spread(Layout(pp=2), micros=4, gradient_checkpointing="full"),
    # Three addends round by their order: both ends of a tied weight must add them alike.
    "ddp(3) x 1f1b(2)": spread(Layout(dp_replicate=3, pp=2), micros=3),
    "zero1(3) x mp(2)": spread(Layout(dp_shard=3, pp=2, schedule="sequential", **ZERO1), micros=3),
    "hsdp(2 x 2), kept, x zero_bubble(2)": spread(
        Layout(dp_replicate=2, dp_shard=2, pp=2, reshard_after_forward=False, schedule="zero_bubble"), micros=2
    ),
    "zero2 x tp x zero_bubble": spread(Layout(dp_shard=2, tp=2, pp=2, schedule="zero_bubble", **ZERO2), micros=2),
    "fsdp(2) x interleaved(2)": spread(Layout(dp_shard=2, pp=2, schedule="interleaved"), micros=4),
    "reduced once": spread(Layout(dp_shard=2, pp=2, schedule="interleaved"), micros=4, reduce_once=True),
}
STAGED = [(method, model, cell) for cell in STAGES for method, model in zip(("full", "lora"), MODELS, strict=True)]
OF_FAMILIES = [
    (method, model, cell)
    for method, model in [("full", "gemma3"), ("lora", "gemma3"), ("full", "granite"), ("lora", "phi3")]
    for cell in ("1f1b(4), 4 micro-batches", "fsdp(2) x interleaved(2)")
]


@pytest.mark.parametrize(("method", "model", "cell"), STAGED)
def test_a_pipeline_trains_as_one_process_does(method, model, cell, must_train_alike) -> None:
    must_train_alike(STAGES[cell], model, method=method)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "model", "cell"), OF_FAMILIES)
def test_other_families_train_in_stages_as_one_process_does(method, model, cell, must_train_alike) -> None:
    must_train_alike(STAGES[cell], model, method=method, train={"max_steps": 6})
