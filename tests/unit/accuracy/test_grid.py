"""Forecasts beside measured runs of our own trainer, and `make accuracy-gpu` on toys."""

import sys
import time
from collections import Counter
from itertools import islice

import pytest

from accuracy.grid import alone, cells, measure
from accuracy.grid.cells import LARGE, LAYOUTS, Cell, drawn, drawn_compiled, drawn_pipelines, drawn_preferences
from accuracy.grid.compare import CELLS, COMPILED, PREFERENCES, compared, read_cells, section, table
from accuracy.grid.elsewhere import elsewhere, measured_alone
from accuracy.grid.measure import kind_of, made_and_others, measured
from shardwise.errors import ShardwiseError
from tests.unit.accuracy.published import measured_runs


def _keep_the_goal(every):
    """States to the byte; of the peak median 2 %, P95 5 %, none off by more than 8 %."""
    assert all(one.exact for one in every)
    errors = sorted(abs(one.error) for one in every if one.measured.seen_whole)
    assert errors[len(errors) // 2] <= 0.02 and errors[int(0.95 * len(errors))] <= 0.05
    assert errors[-1] <= 0.08


def test_forecasts_of_measured_runs_keep_the_goal():
    every = measured_runs()
    drawn = [one for one in every if not one.cell.apart]
    assert len({one.cell for one in drawn}) == cells.COUNT + cells.COUNT_ONCE + cells.COUNT_PIPELINES
    _keep_the_goal(drawn)
    once = [one for one in every if one.measured.reduce_once]
    assert {one.cell.layout for one in once} >= {"zero2", "fsdp", "fsdp 4", "hsdp", "fsdp x tp", "fsdp x 1f1b"}
    _keep_the_goal(once)
    held_out = [one for one in every if one.cell.held_out]
    assert len({one.cell for one in held_out}) == cells.COUNT_HELD_OUT
    _keep_the_goal(held_out)


def test_forecasts_of_compiled_runs_and_of_preferences_keep_the_goal() -> None:
    every = measured_runs(COMPILED)
    assert len({one.cell for one in every}) == cells.COUNT_COMPILED
    assert {one.cell.layout for one in every} == set(cells.LAYOUTS_COMPILED)
    _keep_the_goal(every)
    every = measured_runs(PREFERENCES)
    assert len({one.cell for one in every}) == cells.COUNT_PREFERENCES
    assert {one.cell.layout for one in every} == set(cells.LAYOUTS_OF_PREFERENCES)
    assert {one.cell.objective for one in every} == {"dpo", "orpo", "kto", "simpo"}
    _keep_the_goal(every)


def test_without_a_compiler_compiled_runs_are_left_out_with_a_sentence(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(sys, "argv", ["measure", "--compiled", "--out", str(tmp_path / "compiled.csv")])
    measure.main()
    said = "compiled cells are left out: there is no C++ compiler; install g++, or name one by CXX\n"
    assert capsys.readouterr().err == said
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_no_line_but_its_own_has_what_was_held_out():
    every = measured_runs()
    lines = [row for row in table(every) if row[0] not in ("held out", "led to a rule")]
    assert lines == table(one for one in every if not one.cell.apart)
    page = section()
    eager, compiled = page.split(" further runs have compiled blocks")
    assert eager.count("\n| layout |") == 16
    assert "\n| recompute | selective |" in compiled
    for side, families in (("held out", cells.HELD_OUT), ("led to a rule", cells.LED_TO_A_RULE)):
        assert all(page.count(f"\n| {side} | {family}") == 3 for family in families)
    assert f"\n{cells.COUNT + cells.COUNT_ONCE + cells.COUNT_PIPELINES} runs of toy models" in f"\n{page}"
    assert f"{cells.COUNT_HELD_OUT} further runs" in page


def test_cells_of_one_kind_are_measured_beside_those_of_the_others():
    kinds = Counter(kind_of(*one) for one in read_cells(CELLS))
    counts = {"drawn": cells.COUNT, "reduced once": cells.COUNT_ONCE, "pipelines": cells.COUNT_PIPELINES}
    counts |= {"held out": cells.COUNT_HELD_OUT, "led to a rule": cells.COUNT_LED}
    assert kinds == counts
    every = list(read_cells(CELLS))
    for kind, count in counts.items():
        made, others = made_and_others(CELLS, kind)
        assert len(made) == (0 if kind == "drawn" else count), "drawn ones anew"
        assert others == [one for one in every if kind_of(*one) != kind]


def test_rehearsals_of_measured_runs_are_as_near_as_the_page_says():
    every = [one.measured for one in measured_runs()]
    pairs = [(one.rehearsed, one.peak) for one in every if one.seen_whole]
    errors = sorted(abs(rehearsed / peak - 1) for rehearsed, peak in pairs if rehearsed is not None)
    assert len(errors) > 350
    assert errors[len(errors) // 2] < 0.001 and errors[-1] < 0.01


def test_the_measured_cells_are_those_that_are_drawn():
    kinds = {"drawn": drawn(), "reduced once": drawn(), "pipelines": drawn_pipelines()}
    kinds |= {"held out": drawn(cells.HELD_OUT), "led to a rule": drawn(cells.LED_TO_A_RULE)}
    orders = {kind: islice(order, 2 * cells.COUNT) for kind, order in kinds.items()}
    assert all(cell in orders[kind_of(cell, ranks)] for cell, ranks in read_cells(CELLS)), "each behind the one before"
    order = islice(drawn_compiled(), 2 * cells.COUNT_COMPILED)
    assert all(cell in order for cell, _ in read_cells(COMPILED))
    order = islice(drawn_preferences(), 2 * cells.COUNT_PREFERENCES)
    assert all(cell in order for cell, _ in read_cells(PREFERENCES))


@pytest.mark.parametrize(
    ("config", "others"),
    [
        ({"model_type": "seed_oss", "head_dim": 32}, {"method": "full", "recompute": "none"}),
        ({"model_type": "opt", "ffn_dim": 512, "word_embed_proj_dim": 256}, {"method": "lora", "recompute": "full"}),
    ],
)
def test_what_a_model_drops_out_by_itself_is_counted(config, others, monkeypatch, tmp_path):
    monkeypatch.setitem(cells._CONFIGS, "dropping", config)
    cell = Cell(family="dropping", layout="single", batch=1, length=128, precision="fp32", rows="whole", **others)
    (tmp_path / "cell").mkdir()
    (found,) = compared(cell, measured(cell, tmp_path / "cell"))
    assert abs(found.error) <= 0.08


#: What the kernel of attention's backward on a processor works in, which is not rehearsed.
_ATTENTION = 256 * 1024
_LAYOUTS = ("fsdp 4", "1f1b")


@pytest.mark.slow
def test_a_rank_that_is_alone_allocates_what_is_rehearsed_and_holds_what_is_forecast(tmp_path, capsys):
    small = [cell for cell in alone.cells("cpu") if (cell.layout, cell.method) in [(x, "full") for x in _LAYOUTS]]
    alone.measure(small, device="cpu", out=tmp_path / "alone.csv", over=time.monotonic() + 600)
    found = [one for _, one in measured_alone(tmp_path / "alone.csv")]
    assert [one.cell.layout for one in found] == ["fsdp 4", "1f1b", "1f1b"]
    assert all(one.exact for one in found), "weights and optimizer states, to the byte"
    for one in found:
        rehearsed, beside = one.measured.rehearsed, 0.001 * one.measured.peak
        assert -beside <= one.measured.peak - rehearsed <= beside + _ATTENTION
    assert found[0].measured.weights < found[1].measured.weights, "a quarter, and a half"
    assert elsewhere(tmp_path).count("\n| ") == 2 + len(_LAYOUTS)
    assert "left out: experts: " in capsys.readouterr().out


def test_every_layout_but_those_left_out_is_measured_in_time_or_named(tmp_path, capsys) -> None:
    assert elsewhere(tmp_path) == "", "without files the page has no such sections"
    cells = alone.cells("cuda")
    assert {cell.layout for cell in cells} == LAYOUTS.keys() - alone.LEFT_OUT.keys()
    assert {cell.method for cell in cells} == {"full", "lora", "qlora"}
    assert {cell.family for cell in cells} == set(LARGE)
    alone.measure(alone.cells("cpu")[:1], device="cpu", out=tmp_path / "alone.csv", over=time.monotonic() - 1)
    assert "left out: llama, full, single, 2 x 128 tokens" in capsys.readouterr().out
    assert len((tmp_path / "alone.csv").read_text().splitlines()) == 1


@pytest.mark.slow
def test_a_rank_that_fails_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(alone, "build", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("no kernel image")))
    with pytest.raises(ShardwiseError, match="RuntimeError: no kernel image"):
        alone.rows_of(alone.cells("cpu")[0], device="cpu", folder=tmp_path)
