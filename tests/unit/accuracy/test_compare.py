"""Errors of published rows, long ones too, their summaries, and the page that says them."""

import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from accuracy import document
from accuracy.cases import case_of
from accuracy.compare import compare_memory, compare_throughput
from accuracy.document import FITTED_FOR_TIME, strict, write
from accuracy.errors import relative, summarise
from accuracy.long_rows import long_rows, summary
from accuracy.picture import scatter
from accuracy.remains import FALSE_FITS, FALSE_REFUSALS, REMAINDERS, unexplained
from accuracy.rivals import RIVALS, estimates
from accuracy.rows import memory_figures, read
from shardwise.units import GIB
from tests.unit.accuracy.published import LORA, row
from tests.unit.house.tree import ROOT

PUBLISHED = ROOT.parent / "shared/published"


@pytest.fixture(scope="module", autouse=True)
def _runs_of_ours_once() -> Iterator[None]:
    """What is said of our own trainer's runs is the same for all published rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document, "section", functools.cache(document.section))
        yield


def test_a_summary_counts_a_quarter_as_within():
    found = summarise([0.25, -0.1, 0.0, -0.5])
    assert (found.count, found.median, found.within) == (4, pytest.approx(0.175), 0.75)
    assert (found.bias, found.p90) == (pytest.approx(-0.05), 0.5)
    assert relative(75, 100) == pytest.approx(-0.25)
    with pytest.raises(ValueError, match="above zero"):
        relative(1, 0)
    assert summarise([]) is None


def test_rows_are_compared_or_counted_with_a_reason_and_none_is_lost():
    found = compare_memory([row(), row(gpu_type=""), row(outcome="OOM"), row(micro_batch="")])
    assert found.num_rows == 4
    assert [c.kind for c in found.comparisons] == ["allocated"]
    assert [f.ran for f in found.feasibility] == [True, False]
    assert sum(found.left_out.values()) == 2
    several = compare_memory([row(nvidia_smi_mib="30000"), row(spec_grade="B"), row(mem_kind="not stated")])
    assert [(c.grade, c.kind) for c in strict(several.comparisons)] == [("A", "allocated")]
    (found,) = compare_throughput([row()]).comparisons
    assert (found.kind, found.measured) == ("tokens/s", 18000.0)
    assert found.forecast > 0


def test_other_tools_formulas_give_what_their_pages_give():
    case = case_of(row(shard_strategy="none", n_gpus="1"))
    parameters, found = case.model.num_parameters, estimates(case)
    assert set(found) == {rival.name for rival in RIVALS}
    assert found["accelerate estimate-memory"] == 8 * parameters
    assert found["DeepSpeed ZeRO estimators"] == 20 * parameters
    stream = 2 * 1024 * 2048 * 16
    assert found["EleutherAI cookbook"] == pytest.approx(16 * parameters + 2 * stream)
    assert found["llm-analysis"] == pytest.approx(18 * parameters + 2 * stream + 2 * 2 * 1024 * 128256)
    sharded, embedding = estimates(case_of(row())), case.model.embedding_parameters
    assert sharded["DeepSpeed ZeRO estimators"] == pytest.approx(4 * embedding + 9 * parameters)
    assert sharded["EleutherAI cookbook"] == pytest.approx(8 * parameters + 2 * 2 * 1024 * 2048 * 16)
    assert estimates(case_of(row(**LORA))) == {}


def test_the_page_says_counts_errors_and_reasons():
    rows = [row(), row(source_id="other", gpu_type="")]
    page = write(compare_memory(rows), compare_throughput(rows), date="2026-01-02")
    assert "`make accuracy` wrote this page on 2026-01-02" in page
    assert "| made-up | A | allocated | 1 |" in page
    assert "| the GPU is not stated | 1 | 1 |" in page
    drawn = scatter(compare_memory([row(), row()]).comparisons, title="Memory", unit="GiB", unit_size=1024**3)
    assert drawn.startswith("<svg") and drawn.count('r="3"') == 2


def test_the_command_says_which_table_is_missing(tmp_path: Path):
    command = [sys.executable, "-m", "accuracy", "--published", str(tmp_path), "--docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "memory.csv and throughput.csv and stacks-2026.csv not found" in done.stderr


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published figures are not beside this checkout")
def test_the_published_rows_keep_the_goals(tmp_path: Path):
    memory = compare_memory(one for name in ("memory.csv", "stacks-2026.csv") for one in read(PUBLISHED / name))
    summary = summarise(c.error for c in strict(memory.comparisons))
    assert summary.count >= 250
    assert summary.median <= 0.10 and summary.within >= 0.90
    tables = ("throughput.csv", "stacks-2026.csv")
    throughput = compare_throughput(one for name in tables for one in read(PUBLISHED / name))
    rates = summarise(c.error for c in throughput.comparisons if c.grade == "A")
    assert rates.count >= 500
    assert rates.median <= 0.20
    elsewhere = summarise(c.error for c in throughput.comparisons if c.grade == "A" and c.source not in FITTED_FOR_TIME)
    assert elsewhere.median <= 0.10
    died = [f for f in memory.feasibility if not f.ran]
    ran = [f for f in memory.feasibility if f.ran and f.grade == "A"]
    assert sum(not f.fits for f in died) >= 0.9 * len(died)
    assert sum(not f.fits for f in ran) <= 0.02 * len(ran)
    assert write(memory, throughput, date="2026-01-02")
    figures = (*memory.comparisons, *throughput.comparisons)
    assert unexplained(figures, memory.feasibility) == []
    assert all(any(one.covers(c) for c in figures) for one in REMAINDERS)
    assert {f.row_id for f in memory.feasibility if f.fits and not f.ran} == FALSE_FITS
    assert {f.row_id for f in memory.feasibility if f.ran and not f.fits and f.grade == "A"} == FALSE_REFUSALS


def test_what_is_far_off_and_not_explained_is_named():
    far, near = compare_memory([row(peak_mem_gib_derived="200")]), compare_memory([row()])
    assert unexplained(far.comparisons) == ["made-up A allocated"]
    told = [replace(c, source="fms-acceleration", kind="device") for c in far.comparisons]
    assert unexplained(told) == []
    assert unexplained((), [replace(f, fits=False) for f in near.feasibility]) == ["made-up-001"]
    page = write(replace(far, comparisons=tuple(told)), compare_throughput([]), date="2026-01-02")
    assert "**fms-acceleration, device** (1 figure, median error" in " ".join(page.split())
    page = write(far, compare_throughput([]), date="2026-01-02")
    assert "Without fms-acceleration the goal for the median is missed by" in page


def test_beside_other_tools_the_forecast_without_knowledge_of_the_stack_comes_first():
    page = write(compare_memory([row()]), compare_throughput([]), date="2026-01-02")
    first, second = (page.index(f"| Shardwise, {which} the stack's terms | 1 |") for which in ("without", "with"))
    assert first < second < page.index("| llm-analysis | 1 |")
    assert re.search(r"median error is \d+\.\d\d times that of the best of them, \w", " ".join(page.split()))


def test_what_sources_of_long_rows_say_is_read() -> None:
    several = case_of(row(**LORA | {"lora_targets": "q,v; 4 concurrent adapters (MAX_LORAS)"}))
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
    assert found.count >= 14
    assert found.median <= 0.07
    errors = {one.row_id: one.error for one in compared.comparisons}
    assert abs(errors["trl-1m-2026-002"]) <= 3 / 52  # Qwen3-8B, a row of 1,048,576 tokens on 8 H100
    feasibility = compare_memory(long_rows(rows, mixtures=True)).feasibility
    assert [one.row_id for one in feasibility if one.ran > one.fits] == []
