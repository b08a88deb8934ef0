"""A toy model of three layers with one weight each, on three GPUs: who holds what, and who works when.

Who holds what is asked of the layout code that planner and trainer share (`spec/layout`, `spec/model`). Who works when
is the planner's timeline of one step (`shardwise plan --timeline`).
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from shardwise.api.plans.planning import plan, timeline
from shardwise.spec.layout.axes import Layout, rows_of_shard
from shardwise.spec.model.stages import balanced
from shardwise.spec.plan.timeline import Timeline

LAYERS = ("a", "b", "c")
ROWS = GPUS = 3
#: Three blocks of a width at which an RTX 6000 Ada is busy with computing.
CONFIG = {
    "model_type": "llama",
    "hidden_size": 3072,
    "intermediate_size": 9216,
    "num_hidden_layers": len(LAYERS),
    "num_attention_heads": 24,
    "num_key_value_heads": 24,
    "vocab_size": 3072,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True, kw_only=True)
class ToyStrategy:
    """One way to train the toy on three GPUs, and what a reader should see in it."""

    name: str
    title: str
    text: str


STRATEGIES = (
    ToyStrategy(
        name="mp",
        title="Naive model parallel (`mp`)",
        text="Each GPU holds one layer. A batch goes through them one after the other, so one GPU works at a time "
        "and the others wait. It fits a model that is too large for one GPU; it does not make training "
        "faster.",
    ),
    ToyStrategy(
        name="pp",
        title="Pipeline parallel (`pp`)",
        text="Each GPU holds one layer, as under `mp`, but the batch is cut into micro-batches. While GPU 1 works on "
        "the first, GPU 0 starts the second. The time that GPUs still wait at both ends is the bubble. It "
        "shrinks with more micro-batches: with m of them on p stages it is about (p - 1) / (m + p - 1) of the"
        " step.",
    ),
    ToyStrategy(
        name="ddp",
        title="Distributed data parallel (`ddp`)",
        text="Each GPU holds everything and sees a third of the samples. Gradients are averaged by all-reduce "
        "while the backward still runs. Nothing is saved in memory; it is the fastest where everything fits.",
    ),
    ToyStrategy(
        name="zero1",
        title="ZeRO-1 (`zero1`)",
        text="As `ddp`, but each GPU holds the optimizer states of a third of every weight. It steps these, and "
        "the new weights are gathered. AdamW has two float32 states for each parameter, so this saves up to "
        "half of all states at little cost.",
    ),
    ToyStrategy(
        name="zero2",
        title="ZeRO-2 (`zero2`)",
        text="Gradients and optimizer states are sharded. Here `zero2` is FSDP2 that keeps the gathered weights "
        "from the forward to the end of the backward: between steps the weights are sharded too, during a "
        "step they are whole.",
    ),
    ToyStrategy(
        name="fsdp",
        title="Fully sharded data parallel, ZeRO-3 (`fsdp`)",
        text="Each GPU holds a third of the rows of every weight, gradient and optimizer state. Before a layer "
        "runs, its weight is gathered from all GPUs; afterwards it is freed again. Gradients are reduced and "
        "scattered. The next layer is gathered while the current one computes, so on fast links this costs "
        "little time.",
    ),
    ToyStrategy(
        name="tp",
        title="Tensor parallel (`tp`)",
        text="Each GPU holds a slice of every weight and computes with it as it is: weights are never gathered. "
        "All GPUs see the same samples and exchange activations inside every layer, where nothing can hide "
        "the exchange. It wants the fastest links, such as NVLink inside one node.",
    ),
)

#: What a GPU holds of the model, in the order in which it is shown; a piece is a row of a layer's weight.
Held = Literal["weights", "gradients", "optimizer"]
HOLDINGS: tuple[Held, ...] = ("weights", "gradients", "optimizer")
Piece = tuple[int, int]


def pieces(layout: Layout, rank: int, *, what: Held) -> set[Piece]:
    """(layer, row) of what a rank holds between two steps.

    Args:
        what: `weights`, `gradients` or `optimizer`.
    """
    at = layout.coordinates(rank)
    stages = balanced(len(LAYERS), num_stages=layout.num_stages)
    layers = [layer for stage in layout.stages_of(at.pp) for layer in stages[stage]]
    sharded = layout.dp_shard if what == "optimizer" else layout.weight_shards
    degree, index = (layout.tp, at.tp) if layout.tp > 1 else (sharded, at.dp_shard)
    first = sum(rows_of_shard(ROWS, degree=degree, index=before) for before in range(index))
    held = range(first, first + rows_of_shard(ROWS, degree=degree, index=index)) if degree > 1 else range(ROWS)
    return {(layer, row) for layer in layers for row in held}


@cache
def timeline_of(name: str) -> Timeline:
    """The planner's timeline of one step of the toy on three RTX 6000 Ada. Raises ValueError: it does not fit."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(CONFIG), encoding="utf-8")
        settings = {"model": config, "hardware": f"{GPUS}x RTX-6000-Ada", "layout": name, "data.max_length": 2048}
        settings |= {
            "train.global_batch_size": 24,
            "train.micro_batch_size": {"mp": 24, "tp": 24, "pp": 4}.get(name, 8),
        }
        settings |= {"train.gradient_checkpointing": "none", "train.offload": "none"}
        settings["data.num_rows"] = 24
        drawn = timeline(plan(overrides=[f"{key}={value}" for key, value in settings.items()]))
    if drawn is None:
        raise ValueError(f"{name}: the toy does not fit, so that there is no timeline")
    return drawn
