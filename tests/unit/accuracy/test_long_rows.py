"""Published runs on long rows: what is read of their words, and how far the forecast lies from what
they measured."""

import pytest

from accuracy.cases import case_of
from accuracy.compare import compare_memory
from accuracy.long_rows import long_rows, summary
from accuracy.rows import memory_figures, read
from shardwise.units import GIB
from tests.unit.accuracy.published import LORA, row
from tests.unit.accuracy.test_compare import PUBLISHED


def test_what_sources_of_long_rows_say_is_read() -> None:
    fused = case_of(row(fused_kernels="fused LM head in chunks of 2048")).execution
    assert (fused.loss, fused.mlp) == ("chunked", "full")
    tiled = case_of(row(notes="with MLP tiling; so they must lie in host memory")).execution
    assert (tiled.mlp, tiled.gradient_checkpointing) == ("chunked", "offloaded")
    several = case_of(row(**LORA | {"lora_targets": "q,v; 4 concurrent adapters (MAX_LORAS)"}))
    assert several.job.lora is not None
    assert several.job.lora.r == 4 * int(LORA["lora_rank"])
    assert not several.difference.widens
    assert case_of(row(**LORA | {"master_weights": "frozen base weights fp32 too"})).difference.widens
    gigabytes = {"peak_mem_gib_derived": "", "peak_mem_gb": "56.2", "mem_kind": "not stated"}
    assert memory_figures(row(source_id="trl-1m-2026", **gigabytes)) == {"unstated": pytest.approx(56.2e9)}
    assert memory_figures(row(**gigabytes)) == {"unstated": 56.2 * GIB}


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published figures lie beside the repository")
def test_published_long_rows_are_forecast_and_none_that_ran_is_refused() -> None:
    """With adapters on experts of prime-rl's own code the median is 10.6 %."""
    rows = read(PUBLISHED / "stacks-2026.csv")
    compared = compare_memory(long_rows(rows))
    found = summary(compared)
    assert found is not None
    assert found.count >= 14
    assert found.median <= 0.07
    errors = {one.row_id: one.error for one in compared.comparisons}
    assert abs(errors["trl-1m-2026-002"]) <= 3 / 52  # Qwen3-8B, a row of 1,048,576 tokens on 8 H100
    assert [
        one.row_id for one in compare_memory(long_rows(rows, mixtures=True)).feasibility if one.ran > one.fits
    ] == []
