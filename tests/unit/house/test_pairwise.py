"""The cells that CI runs meet what they promise to."""

from __future__ import annotations

from itertools import combinations, product

from tests.pairwise import cover

LAYOUTS, METHODS, MODELS = ("ddp", "fsdp", "tp", "pp"), ("full", "lora"), ("tied", "untied", "gpt2")


def test_every_pair_of_values_of_three_parameters_is_met_by_fewer_cells():
    cells = {cell: dict(zip("abc", cell, strict=True)) for cell in product(LAYOUTS, METHODS, MODELS)}
    chosen = cover(cells)
    assert len(chosen) < len(cells)
    met = {pair for cell in chosen for pair in combinations(cell, 2)}
    assert met == {pair for cell in cells for pair in combinations(cell, 2)}
