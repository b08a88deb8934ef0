"""The cells that CI runs meet what they promise to."""

from __future__ import annotations

from itertools import combinations, product

from tests.pairwise import cover, evenly

LAYOUTS, METHODS, MODELS = ("ddp", "fsdp", "tp", "pp"), ("full", "lora"), ("tied", "untied", "gpt2")


def test_every_pair_of_values_of_three_parameters_is_met_by_fewer_cells():
    cells = {cell: dict(zip("abc", cell, strict=True)) for cell in product(LAYOUTS, METHODS, MODELS)}
    chosen = cover(cells)
    assert len(chosen) < len(cells)
    met = {pair for cell in chosen for pair in combinations(cell, 2)}
    assert met == {pair for cell in cells for pair in combinations(cell, 2)}


def test_every_value_of_two_parameters_is_met():
    chosen = cover({cell: dict(zip("ab", cell, strict=True)) for cell in product(LAYOUTS, METHODS)})
    assert {value for cell in chosen for value in cell} == {*LAYOUTS, *METHODS}
    assert len(chosen) == len(LAYOUTS)


def test_a_test_without_parameters_is_one_cell():
    assert cover({"alone": {}}) == ["alone"]


def test_of_many_some_are_taken_at_even_distances():
    assert evenly(range(20), 8) == [0, 3, 6, 9, 12, 15, 18]
