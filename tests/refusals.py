"""What is said where something is refused."""

from collections.abc import Callable
from typing import Any

import pytest


def said_by(error: type[Exception], action: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """The sentence with which an action is refused."""
    with pytest.raises(error) as caught:
        action(*arguments, **named)
    return str(caught.value)


def must_refuse(error: type[Exception], match: str, action: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """An action is refused with a sentence in which a pattern is found."""
    with pytest.raises(error, match=match):
        action(*arguments, **named)
