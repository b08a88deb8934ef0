"""Forecasts beside the measured runs of our own trainer, which lie in the repository."""

import sys
from collections import Counter
from itertools import islice

import pytest

from accuracy.grid import cells, measure
from accuracy.grid.cells import (
    COUNT,
    COUNT_COMPILED,
    COUNT_HELD_OUT,
    COUNT_LED,
    COUNT_ONCE,
    COUNT_PIPELINES,
    HELD_OUT,
    LAYOUTS_COMPILED,
    LED_TO_A_RULE,
    Cell,
    drawn,
    drawn_compiled,
    drawn_pipelines,
)
from accuracy.grid.compare import CELLS, COMPILED, compared, misses, read_cells, section, table
from accuracy.grid.measure import kind_of, made_and_others, measured


def test_forecasts_of_measured_runs_stay_as_near_as_the_page_says():
    every = [one for cell, ranks in read_cells(CELLS) if not cell.apart for one in compared(cell, ranks)]
    assert len({one.cell for one in every}) == COUNT + COUNT_ONCE + COUNT_PIPELINES
    assert all(one.exact for one in every), "weights and optimizer states, to the byte"
    errors = sorted(abs(one.error) for one in every if one.measured.seen_whole)
    assert errors[len(errors) // 2] < 0.001
    assert sum(error > 0.02 for error in errors) <= 4
    low = sorted(one.error for one in every if one.measured.seen_whole and one.error < -0.01)
    assert len(low) <= 2, "olmo2's rotary tables, and one workspace of a product in bfloat16, which the page names"
    assert min(low, default=0) > -0.019
    assert max(max(found) for found in misses(every).values()) < 0.03
    assert sorted(map(abs, misses(every)["all others"]))[70] < 0.005


def test_where_gradients_are_reduced_once_a_step_the_forecast_is_as_near():
    every = [one for cell, ranks in read_cells(CELLS) if not cell.held_out for one in compared(cell, ranks)]
    once = [one for one in every if one.measured.reduce_once and one.measured.seen_whole]
    tuned = {one.cell for one in once if not one.cell.apart}
    assert {cell.layout for cell in tuned} >= {"zero2", "fsdp", "fsdp 4", "hsdp", "fsdp x tp", "fsdp x 1f1b"}
    errors = [one.error for one in once]
    assert min(errors) > -0.01
    assert max(errors) < 0.025


def test_runs_that_led_to_no_rule_are_forecast_as_the_page_says():
    every = [one for cell, ranks in read_cells(CELLS) if cell.held_out for one in compared(cell, ranks)]
    assert len({one.cell for one in every}) == COUNT_HELD_OUT
    assert all(one.exact for one in every)
    errors = [one.error for one in every if one.measured.seen_whole]
    assert min(errors) > -0.01
    assert max(errors) < 0.05


def test_compiled_runs_are_forecast_as_the_page_says():
    every = [one for cell, ranks in read_cells(COMPILED) for one in compared(cell, ranks)]
    assert all(one.exact for one in every)
    cells = {one.cell for one in every}
    assert len(cells) == COUNT_COMPILED
    assert {cell.layout for cell in cells} == set(LAYOUTS_COMPILED)
    sure = [one for one in every if one.measured.seen_whole]
    errors = sorted(one.error for one in sure)
    sizes = sorted(map(abs, errors))
    assert sizes[len(sizes) // 2] < 0.003
    assert sorted(one.cell.family for one in sure if abs(one.error) > 0.02) == ["gpt_neox", "granite", "olmo2"]
    assert [one.cell.family for one in sure if one.error < -0.013] == ["starcoder2"]
    assert errors[0] > -0.016
    assert errors[-1] < 0.05


def test_without_a_compiler_compiled_runs_are_left_out_with_a_sentence(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(sys, "argv", ["measure", "--compiled", "--out", str(tmp_path / "compiled.csv")])
    measure.main()
    said = "compiled cells are left out: there is no C++ compiler; install g++, or name one by CXX\n"
    assert capsys.readouterr().err == said
    assert not any(tmp_path.iterdir())


def test_no_line_but_its_own_has_what_was_held_out():
    every = [one for cell, ranks in read_cells(CELLS) for one in compared(cell, ranks)]
    lines = [row for row in table(every) if row[0] not in ("held out", "led to a rule")]
    assert lines == table(one for one in every if not one.cell.apart)
    page = section()
    eager, compiled = page.split(" further runs have compiled blocks")
    assert eager.count("\n| layout |") == 16
    assert "\n| recompute | selective |" in compiled
    for side, families in (("held out", HELD_OUT), ("led to a rule", LED_TO_A_RULE)):
        assert all(page.count(f"\n| {side} | {family}") == 3 for family in families)
    assert f"\n{COUNT + COUNT_ONCE + COUNT_PIPELINES} runs of toy models" in f"\n{page}"
    assert f"{COUNT_HELD_OUT} further runs" in page


def test_cells_of_one_kind_are_measured_beside_those_of_the_others():
    kinds = Counter(kind_of(*one) for one in read_cells(CELLS))
    counts = {
        "drawn": COUNT,
        "reduced once": COUNT_ONCE,
        "pipelines": COUNT_PIPELINES,
        "held out": COUNT_HELD_OUT,
        "led to a rule": COUNT_LED,
    }
    assert kinds == counts
    every = list(read_cells(CELLS))
    for kind, count in counts.items():
        made, others = made_and_others(CELLS, kind)
        assert len(made) == (0 if kind == "drawn" else count), "drawn ones anew"
        assert others == [one for one in every if kind_of(*one) != kind]


def test_rehearsals_of_measured_runs_are_as_near_as_the_page_says():
    every = [one.measured for cell, ranks in read_cells(CELLS) for one in compared(cell, ranks)]
    pairs = [(one.rehearsed, one.peak) for one in every if one.seen_whole]
    errors = sorted(abs(rehearsed / peak - 1) for rehearsed, peak in pairs if rehearsed is not None)
    assert len(errors) > 350
    assert errors[len(errors) // 2] < 0.001
    assert errors[-1] < 0.01


def test_the_measured_cells_are_those_that_are_drawn():
    kinds = {
        "drawn": drawn(),
        "reduced once": drawn(),
        "pipelines": drawn_pipelines(),
        "held out": drawn(HELD_OUT),
        "led to a rule": drawn(LED_TO_A_RULE),
    }
    orders = {kind: islice(order, 2 * COUNT) for kind, order in kinds.items()}
    assert all(cell in orders[kind_of(cell, ranks)] for cell, ranks in read_cells(CELLS)), "each behind the one before"
    order = islice(drawn_compiled(), 2 * COUNT_COMPILED)
    assert all(cell in order for cell, _ in read_cells(COMPILED))


@pytest.mark.parametrize(
    ("config", "others"),
    [
        ({"model_type": "seed_oss", "head_dim": 32}, {"method": "full", "recompute": "none"}),
        ({"model_type": "opt", "ffn_dim": 512, "word_embed_proj_dim": 256}, {"method": "lora", "recompute": "full"}),
    ],
    ids=["seed_oss", "opt"],
)
def test_what_a_model_drops_out_by_itself_is_counted(config, others, monkeypatch, tmp_path):
    monkeypatch.setitem(cells._CONFIGS, "dropping", config)
    cell = Cell(family="dropping", layout="single", batch=1, length=128, precision="fp32", rows="whole", **others)
    (tmp_path / "cell").mkdir()
    (found,) = compared(cell, measured(cell, tmp_path / "cell"))
    assert abs(found.error) < 0.01
