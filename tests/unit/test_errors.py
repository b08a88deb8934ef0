"""What a library's error says, in a message's words."""

import pytest

from shardwise.errors import said


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
    words = said(ValueError(f"Short. {'word ' * 100}"))
    assert words == f"Short. {'word ' * 56}word ..."
    assert said(ValueError("x" * 301)) == "x" * 296 + " ..."
