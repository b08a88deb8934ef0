"""CI runs, of a slow table, what is most unlike the cells that `make test` runs."""

from tests.pairwise import most_unlike

CELLS = [
    {"layout": "ddp", "method": "full"},
    {"layout": "ddp", "method": "lora"},
    {"layout": "tp", "method": "full"},
    {"layout": "tp", "method": "lora"},
]


ONE = [1] * 4


def test_the_cell_with_most_values_that_no_fast_cell_has_is_run():
    assert most_unlike(CELLS, [False, True, True, True], ONE) == 3


def test_where_all_values_are_met_it_is_a_pair_that_is_not():
    assert most_unlike(CELLS, [False, True, True, False], ONE) == 2
    five = [*CELLS, {"layout": "tp", "method": "qlora"}]
    assert most_unlike(five, [False, True, True, False, True], [1, *ONE]) == 4


def test_of_several_it_is_the_last_of_two_processes_or_nearly():
    assert most_unlike(CELLS, [True] * 4, ONE) == 3
    assert most_unlike(CELLS, [True] * 4, [2, 2, 4, 4]) == 1
    assert most_unlike(CELLS, [True] * 4, [1, 4, 4, 8]) == 0
