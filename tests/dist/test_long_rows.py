"""What ranks of cp hold of long rows: half of weights and states, and the forecast peak."""

import json

import pytest

from accuracy.grid.cells import COMMON
from accuracy.grid.measure import _peaks, model_folder
from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import read_model
from shardwise.plan.memory.forecast import forecast_memory
from shardwise.plan.work.inventory import take_inventory
from shardwise.plan.work.work import work_of
from shardwise.spec.job.file import job_from_data
from shardwise.spec.layout.axes import Layout
from tests.dist.cells import execution, forecast_holdings, prepare_cell
from tests.dist.test_memory import _held
from tests.dist.worlds import run_world

#: Of what a whole copy takes: half, and the padding of shards.
SHARE = 0.55
#: How far a peak may lie from its forecast.
APART = 0.04


def test_ranks_of_cp_hold_half_of_a_whole_copy(make_job, tmp_path) -> None:
    job = make_job("deep untied", train={"max_steps": 1})
    bytes_held: list[int] = []
    for name, layout in {"cut": Layout(cp=2), "whole": Layout(cp=2, shard_over_cp=False)}.items():
        chosen = execution(layout, micro_batch_size=1)
        ranks = run_world(2, _held, prepare_cell(job, tmp_path / name), chosen)
        assert [one.weights for one in ranks] == [one.stored for one in forecast_holdings(job, chosen).values()]
        bytes_held.append(max(one.weights + one.optimizer for one in ranks))
    assert bytes_held[0] <= SHARE * bytes_held[1]


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.parametrize(("mlp", "kv_heads"), [("full", 2), ("chunked", 2), ("chunked", 4)])
def test_the_peak_of_a_long_row_is_forecast(mlp, kv_heads, tmp_path) -> None:
    length = 16_384
    config = {**COMMON, "model_type": "llama", "hidden_size": 128, "num_attention_heads": 4}
    config["num_key_value_heads"] = kv_heads
    config |= {"num_hidden_layers": 2, "intermediate_size": 384, "max_position_embeddings": length}
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": "w7 " * (length + 9)}) + "\n" for _ in range(3)))
    data = {"path": str(rows), "max_length": length, "over_long": "truncate"}
    train = {"global_batch_size": 1, "max_steps": 3, "optimizer": "adamw", "precision": "fp32", "compile": False}
    model = str(model_folder(tmp_path, json.dumps(config)))
    job = job_from_data({"model": model, "data": data, "train": train})
    chosen = execution(Layout(cp=2), micro_batch_size=1, gradient_checkpointing="full", loss="chunked", mlp=mlp)
    ranks = run_world(2, _peaks, prepare_cell(job, tmp_path / "run"), chosen)
    shape, cluster = read_model(model), parse_hardware("cpu:2")
    work = work_of(job, model=shape, cluster=cluster, execution=chosen, inventory=take_inventory(job, shape))
    (forecast,) = forecast_memory(work).ranks
    best = min(ranks, key=lambda one: one["unseen"])
    # What gloo's thread frees is seen late on a busy machine: the peak lies between these two.
    least, most = best["peak"] - best["unseen"], best["peak"]
    assert least > 0.8 * most, "too little was seen to compare"
    assert (1 - APART) * least <= forecast.peak_bytes - forecast.parts.get("context", 0) <= (1 + APART) * most
