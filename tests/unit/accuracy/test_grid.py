"""Forecasts beside the measured runs of our own trainer, which lie in the repository."""

from itertools import islice

from accuracy.grid.cells import COUNT, COUNT_HELD_OUT, HELD_OUT, drawn
from accuracy.grid.compare import CELLS, compared, misses, read_cells, section, table


def test_forecasts_of_measured_runs_stay_as_near_as_the_page_says():
    every = [one for cell, ranks in read_cells(CELLS) if not cell.held_out for one in compared(cell, ranks)]
    assert len({one.cell for one in every}) == COUNT
    assert all(one.exact for one in every), "weights and optimizer states, to the byte"
    errors = sorted(abs(one.error) for one in every if one.measured.seen_whole)
    assert errors[len(errors) // 2] < 0.001
    assert sum(error > 0.02 for error in errors) <= 1
    low = [one.error for one in every if one.measured.seen_whole and one.error < -0.01]
    assert len(low) <= 3
    assert min(low) > -0.02
    assert max(max(found) for found in misses(every).values()) < 0.03
    assert sorted(map(abs, misses(every)["all others"]))[70] < 0.005


def test_runs_that_led_to_no_rule_are_forecast_as_the_page_says():
    every = [one for cell, ranks in read_cells(CELLS) if cell.held_out for one in compared(cell, ranks)]
    assert len({one.cell for one in every}) == COUNT_HELD_OUT
    assert all(one.exact and one.measured.seen_whole for one in every)
    once = [one.error for one in every if one.measured.reduce_once]
    others = [one.error for one in every if not one.measured.reduce_once]
    assert max(map(abs, others)) < 0.01
    assert min(once) > -0.01
    assert sum(error > 0.05 for error in once) <= 2, "one run"
    assert max(once) < 0.31


def test_no_line_but_its_own_has_what_was_held_out():
    every = [one for cell, ranks in read_cells(CELLS) for one in compared(cell, ranks)]
    lines = [row for row in table(every) if row[0] != "held out"]
    assert lines == table(one for one in every if not one.cell.held_out)
    page = section()
    assert page.count("\n| layout |") == 14
    assert page.count("\n| held out | seed_oss") == 3
    assert f"\n{COUNT} runs of toy models" in f"\n{page}"
    assert f"{COUNT_HELD_OUT} further runs" in page


def test_rehearsals_of_measured_runs_are_as_near_as_the_page_says():
    every = [one.measured for cell, ranks in read_cells(CELLS) for one in compared(cell, ranks)]
    pairs = [(one.rehearsed, one.peak) for one in every if one.seen_whole]
    errors = sorted(abs(rehearsed / peak - 1) for rehearsed, peak in pairs if rehearsed is not None)
    assert len(errors) > 220
    assert errors[len(errors) // 2] < 0.001
    assert errors[-1] < 0.01


def test_the_measured_cells_are_those_that_are_drawn():
    order = islice(drawn(), 2 * COUNT)
    assert all(cell in order for cell, _ in read_cells(CELLS) if not cell.held_out), "each behind the one before"
    order = islice(drawn(HELD_OUT), 2 * COUNT_HELD_OUT)
    assert all(cell in order for cell, _ in read_cells(CELLS) if cell.held_out)
