"""The peak of long rows over cp, measured in real processes beside the forecast."""

import json

import pytest

from accuracy.grid.cells import COMMON
from accuracy.grid.measure import _peaks, model_folder
from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import read_model
from shardwise.plan.memory import forecast_memory
from shardwise.plan.work import take_inventory, work_of
from shardwise.spec.job.file import job_from_data
from shardwise.spec.layout.axes import Layout
from tests.dist.cells import execution, prepare_cell
from tests.dist.worlds import run_world

#: How far a peak may lie from its forecast.
APART = 0.04


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
