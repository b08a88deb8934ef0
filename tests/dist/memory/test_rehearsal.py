"""A rehearsal, without numbers, finds what the same code allocates, and real ranks hold."""

from typing import Any
from unittest.mock import patch

import pytest

from shardwise.plan.memory.forecast import forecast_memory
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import RunDirectory, write_json
from shardwise.train.build import Build, build
from shardwise.train.loop import launch
from shardwise.train.measuring.memory import held
from shardwise.train.rehearsing.command import rehearse_ranks
from shardwise.train.rehearsing.rank import alone, write_rows
from shardwise.train.watching.journal import Journal
from tests.dist.cells import LAYOUTS, execution, planned, run_built, train_on
from tests.dist.worlds import run_world, toy_model

#: Method, and what of an execution is not `cells.execution`'s.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("full", {}),
    "recompute": ("full", {"precision": "mixed", "gradient_checkpointing": "full"}),
    "selective": ("full", {"precision": "bf16", "gradient_checkpointing": "selective"}),
    "lora": ("lora", {"precision": "mixed"}),
    "lora selective": ("lora", {"precision": "mixed", "gradient_checkpointing": "selective"}),
    "qlora": ("qlora", {"precision": "mixed"}),
    "fp16": ("full", {"precision": "fp16", "loss": "full"}),
    "adafactor": ("full", {"precision": "mixed", "optimizer": "adafactor"}),
    "adamw_8bit": ("full", {"precision": "mixed", "optimizer": "adamw_8bit"}),
    "adamw_foreach": ("lora", {"precision": "bf16", "optimizer": "adamw_foreach"}),
}

#: What the profiler counts of a step that the code does not make, and the reverse.
_BESIDE = 0.001

#: What the kernel of attention's backward works in on a processor, at the sizes below.
_ATTENTION = 256 * 1024


def _cell(tmp_path, make_job, layout: str, kind: str, *, size=4, length=64) -> tuple[RunDirectory, Job, Execution]:
    """A prepared run of two steps, whose rows are all as long as they may be."""
    (method, options), ranks = KINDS[kind], LAYOUTS[layout].data_world_size
    sizes = dict[str, Any](hidden_size=256, intermediate_size=384, num_hidden_layers=4, max_position_embeddings=256)
    model = toy_model(tmp_path / "model", vocab_size=512, **sizes)
    chosen = execution(LAYOUTS[layout], micro_batch_size=size, gradient_accumulation_steps=2, **options)
    rows = 2 * size * ranks
    train = {"global_batch_size": rows, "max_steps": 2, "precision": chosen.precision, "save_steps": 0}
    train |= {"optimizer": chosen.optimizer} | ({"weight_decay": 0.0} if chosen.optimizer == "adafactor" else {})
    job = make_job(model, method=method, data={"max_length": length}, train=train)
    run = RunDirectory(tmp_path / "run")
    write_json(run.resolved, job.to_json())
    write_rows(run, job, count=2 * rows)
    return run, job, chosen


def _figures(built: Build) -> tuple[int, int, int]:
    now = held((p for _, p in built.model.parameters), built.optimizer)
    return built.metrics.meter.peak_bytes, now.weights, now.optimizer


def _alone(run: RunDirectory, job: Job, chosen: Execution, rank: int) -> tuple[int, int, int]:
    """Two steps of one rank with numbers, to which collectives bring none: a loss may be any."""
    with alone(chosen.layout, rank=rank) as world, patch("shardwise.train.loop._check", return_value=True):
        built = build(run, job, chosen, world=world, journal=Journal(run=run, rank=rank))
        for batch in built.batches.from_(0):
            with built.metrics.meter.watch([job.data.max_length]):
                launch(built, batch)
        return _figures(built)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rehearsal_is_what_the_same_code_allocates(layout, kind, make_job, tmp_path) -> None:
    run, job, chosen = _cell(tmp_path, make_job, layout, kind)
    refused = {
        f"optimizer adamw_8bit is not trained under {layout}; use optimizer: adamw, or fsdp": (
            chosen.optimizer == "adamw_8bit" and chosen.layout.tp > 1
        ),
        f"schedule zero_bubble is not trained with gradient_checkpointing: {chosen.gradient_checkpointing}": (
            layout == "zero_bubble" and chosen.gradient_checkpointing != "none"
        ),
    }
    if any(refused.values()):
        (answer,) = rehearse_ranks(job, chosen, [0], cuda=False)
        (reason,) = answer["refused"]
        assert [stated for stated, holds in refused.items() if holds and reason.startswith(stated)]
        return
    ranks = sorted({0, chosen.layout.world_size - 1})
    for rank, found in zip(ranks, rehearse_ranks(job, chosen, ranks, cuda=False, copies=False), strict=True):
        (peak, weights, optimizer), *_ = run_world(1, _alone, run, job, chosen, rank)
        assert (found["held"]["weights"], found["held"]["optimizer"]) == (weights, optimizer)
        beside = _BESIDE * found["peak_bytes"]
        assert -beside <= peak - found["peak_bytes"] <= beside + _ATTENTION
        assert sum(found["parts"].values()) == found["peak_bytes"] <= found["peak_reserved_bytes"]


@pytest.mark.slow
def test_a_micro_batch_of_one_row_keeps_under_tp_what_real_tensors_keep(make_job, tmp_path) -> None:
    """Strides of one row, which fakes once had otherwise, choose the product that is kept."""
    run, job, chosen = _cell(tmp_path, make_job, "tp", "lora selective", size=1, length=256)
    (found,) = rehearse_ranks(job, chosen, [0], cuda=False, copies=False)
    (peak, *_), *_ = run_world(1, _alone, run, job, chosen, 0)
    assert 0 <= peak - found["peak_bytes"] <= _BESIDE * peak + _ATTENTION


@pytest.mark.slow
def test_prepared_rows_are_rehearsed_as_they_are(make_job, tmp_path) -> None:
    run, job, chosen = _cell(tmp_path, make_job, "fsdp", "full", length=32)
    longer = job.model_copy(update={"data": job.data.model_copy(update={"max_length": 64})})
    found = [
        rehearse_ranks(asked, chosen, [0], cuda=False, prepared=rows)[0]
        for asked, rows in ((job, None), (longer, run), (longer, None))
    ]
    peaks = [one["peak_bytes"] for one in found]
    assert peaks[0] == peaks[1] < peaks[2]
    begun, then = found[1]["step_peaks"]
    assert begun < then == peaks[1], "the second step has optimizer states"


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rehearsal_is_what_real_ranks_hold(layout, make_job, tmp_path) -> None:
    """Their peaks are no lower: what gloo's own threads let go of is not seen to be freed."""
    run, job, chosen = _cell(tmp_path, make_job, layout, "full")
    rehearsed = rehearse_ranks(job, chosen, range(chosen.layout.world_size), cuda=False)
    ranks = run_built(lambda built: train_on(built) or _figures(built), run, chosen)
    for (peak, *kept), found in zip(ranks, rehearsed, strict=True):
        assert [found["held"]["weights"], found["held"]["optimizer"]] == kept
        assert (1 - _BESIDE) * found["peak_bytes"] <= peak


PARTS = [(packing, mlp, 2) for packing in (False, True) for mlp in ("full", "chunked")]


@pytest.mark.parametrize(("packing", "mlp", "kv_heads"), [(False, "chunked", 4), *PARTS])
def test_parts_of_rows_are_rehearsed_and_forecast_alike(packing, mlp, kv_heads, make_job, tmp_path) -> None:
    """A rank of two, each with half of 8,192 positions."""
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 688, "max_position_embeddings": 8192}
    model = toy_model(tmp_path / "model", vocab_size=256, num_key_value_heads=kv_heads, **sizes)
    chosen = execution(Layout(cp=2), micro_batch_size=1, precision="bf16", gradient_checkpointing="full", mlp=mlp)
    train = {"global_batch_size": 1, "max_steps": 2, "precision": "bf16", "save_steps": 0}
    job = make_job(model, data={"max_length": 8192, "packing": packing}, train=train)
    (found,) = rehearse_ranks(job, chosen, [0], cuda=False)
    said = forecast_memory(planned(job, chosen))
    assert said.peak_bytes - said.ranks[0].parts["context"] == pytest.approx(found["peak_bytes"], rel=0.04)
