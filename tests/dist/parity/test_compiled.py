"""Compiled blocks train as eager ones; rows of many lengths compile each kind of block twice."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from shardwise.parallel import compiled
from shardwise.parallel.gradients import apply_replication
from shardwise.parallel.mesh import join_world
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import RunDirectory
from tests.dist.cells import OPTIMIZERS, ZERO1, ZERO2, Trained, composed, prepare_cell, spread, train_rank
from tests.dist.compare import must_equal
from tests.dist.worlds import run_world
from tests.marks import CI

CELLS: dict[str, Execution] = {
    "fsdp(2), selective": spread(Layout(dp_shard=2), gradient_checkpointing="selective"),
    "single, packed": spread(micros=2),
    "single, packed, by document": spread(micros=2, attn_implementation="varlen"),
    "single, full recompute": spread(micros=2, gradient_checkpointing="full"),
    "ddp(2), accumulation 2": spread(Layout(dp_replicate=2), micros=2),
    "zero1(2)": spread(Layout(dp_shard=2, **ZERO1)),
    "zero2(2), full recompute": spread(Layout(dp_shard=2, **ZERO2), gradient_checkpointing="full"),
    "1f1b(2), selective": spread(Layout(pp=2), micros=4, gradient_checkpointing="selective"),
    "interleaved(2)": spread(Layout(pp=2, schedule="interleaved"), micros=4),
    "from the host": spread(offload="parameters"),
    "fsdp(2), optimizer on the host": spread(Layout(dp_shard=2), offload="optimizer"),
}
#: Those with several graphs: attention gathers keys between them, and an MLP goes tile by tile.
BROKEN: dict[str, Execution] = {
    "cp(2), full recompute": spread(Layout(cp=2), gradient_checkpointing="full"),
    "cp(2), in tiles": spread(Layout(cp=2), gradient_checkpointing="offloaded", mlp="chunked"),
    "cp(2)": spread(Layout(cp=2), micros=2),
}


def train_compiled(run: RunDirectory, chosen: Execution) -> tuple[Trained, int, int]:
    """Trains without the compiler's slow last stage; graphs, and how often Python ran between."""
    compiled.BACKEND = "aot_eager"  # the fork's own
    counters.clear()  # a fork inherits its parent's
    return train_rank(composed(run, chosen)), counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


#: Of these CI runs two.
TABLE = [
    pytest.param(
        *kind, cell, marks=CI[1:] if kind[0] == "full" and cell in ("fsdp(2), optimizer on the host", "cp(2)") else ()
    )
    for kind in (("lora", "deep untied", 2), ("full", "deep tied", 1))
    for cell in (*CELLS, *BROKEN)
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # dynamo's own
@pytest.mark.parametrize(("method", "model", "kinds", "cell"), TABLE)
def test_compiled_blocks_train_as_eager_do(method, model, kinds, cell, single, make_job, monkeypatch, tmp_path) -> None:
    """Of LoRA the first block is a kind of its own: its input has no gradient."""
    monkeypatch.setattr("shardwise.spec.layout.execution.LEAST_MLP_CHUNK", 7)
    train = {"max_steps": 3, "warmup_steps": 1} if cell in BROKEN else {}
    job = make_job(model, method=method, data={"packing": "packed" in cell}, train=OPTIMIZERS["sgd"] | train)
    chosen, run = replace((CELLS | BROKEN)[cell], optimizer="sgd", compile=True), prepare_cell(job, tmp_path)
    ranks = run_world(chosen.layout.world_size, train_compiled, run, chosen)
    must_equal(single(job), [trained for trained, _, _ in ranks])
    masks = 2 if "packed" in cell else 1  # a row that is one document has no mask; as many documents as there are
    for _, graphs, breaks in ranks:
        if cell in BROKEN:
            assert graphs > 1
            continue
        assert 0 < graphs <= 2 * kinds * masks + 2, "two of the loss, of one number of trained positions and of any"
        assert breaks == 0


def graphs_of_a_replicated_block() -> int:
    """Of two layers, each of which fills DDP's first bucket of 1 MiB."""
    graphs = []
    compiled.BACKEND = lambda graph, _: graphs.append(graph) or graph  # the fork's own
    world = join_world(Layout())
    block = nn.Sequential(nn.Linear(600, 600), nn.Linear(600, 600))
    compiled.apply_compile([block])
    replicated, _ = apply_replication(nn.Sequential(block), group=world.data_group, device=world.device)
    replicated(torch.ones(1, 600)).sum().backward()
    return len(graphs)


def test_ddp_does_not_cut_the_graph_of_a_block_where_a_bucket_ends() -> None:
    assert run_world(1, graphs_of_a_replicated_block) == [1]
