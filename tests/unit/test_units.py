"""Quantities and errors as people read them."""

import pytest

from shardwise.errors import InputError, Problem, said
from shardwise.units import GIB, format_bytes, format_count, format_ranks, format_seconds


@pytest.mark.parametrize(
    ("count", "text"),
    [(1023, "1023 B"), (1024, "1.00 KiB"), (48 * GIB, "48.0 GiB"), (612 * 1024**2, "612 MiB"), (-GIB, "-1.00 GiB")],
)
def test_bytes_have_three_figures(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_counts_durations_and_ranks_read_well() -> None:
    assert [format_count(n) for n in (512, 1_100_000_000, 8_030_000_000, 25_000_000)] == ["512", "1.1B", "8.03B", "25M"]
    assert [format_count(n) for n in (999, 999_500, 999_885_952, 7e19)] == ["999", "1M", "1B", "70,000,000T"]
    assert [format_seconds(s) for s in (0.0, 0.00044, 0.0288, 0.005)] == ["0.00 s", "0.44 ms", "28.8 ms", "5 ms"]
    long = [format_seconds(s) for s in (0.42, 59, 233, 18120, 273600)]
    assert long == ["0.42 s", "59 s", "3 min 53 s", "5 h 02 min", "3 d 4 h"]
    named = [format_ranks(ranks) for ranks in ([4], [3, 0, 1, 2], [9, 0, 1, 3])]
    assert named == ["rank 4", "ranks 0-3", "ranks 0-1, 3, 9"]


def test_an_input_error_lists_the_first_twenty_and_counts_all() -> None:
    lines = str(InputError([Problem(where=f"a:{i}", message="bad") for i in range(30)], total=100)).splitlines()
    assert lines[0] == "a:0: bad" and lines[-1] == "... and 80 more (100 in all)"
    assert len(lines) == 21


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one line", "one line"),
        ("\n\n  first \n second", "first"),
        ("Validation error for 'a':\n    TypeError: no tuple\nmore", "Validation error for 'a': TypeError: no tuple"),
        ("install it with:\n", "install it with:"),
        ("first:\nthen:\nat last", "first: then: at last"),
        ("", "ValueError"),
    ],
)
def test_an_error_says_its_first_line_and_what_that_announces(text: str, expected: str) -> None:
    assert said(ValueError(text)) == expected


def test_what_is_too_long_ends_with_a_sentence_or_with_a_word() -> None:
    assert said(ValueError("x" * 300)) == "x" * 300
    assert said(ValueError(f"{'word ' * 40}end. {'more ' * 40}")) == f"{'word ' * 40}end."
    assert said(ValueError(f"Short. {'word ' * 100}")) == f"Short. {'word ' * 56}word ..."
    assert said(ValueError("x" * 301)) == "x" * 296 + " ..."
