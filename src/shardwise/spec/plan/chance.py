"""Chance: how often what is forecast like this fits, by the errors that were measured."""

from dataclasses import dataclass

from shardwise.units import format_gib

#: From so many in 100 on, in a word.
_WORDS = ((95, "surely"), (80, "likely"), (50, "maybe"), (0, "hardly"))


@dataclass(frozen=True, kw_only=True)
class Chance:
    """That the chosen candidate fits.

    Attributes:
        in_100: from 1 to 99.
        group: whose errors these are: `this trainer`, `other stacks`, perhaps of a kind of layout.
        rows: measured runs of that group, `sources` of how many sources.
        narrowed_by: the measurement that would narrow it most.
        screen_bytes: what it leaves for a screen that the card may drive.
    """

    in_100: int
    group: str
    rows: int
    sources: int
    narrowed_by: str
    screen_bytes: int = 0

    @property
    def word(self) -> str:
        """Of the number."""
        return next(word for least, word in _WORDS if self.in_100 >= least)

    @property
    def words(self) -> str:
        """It in a word and as a number; with the screen, where that has much to do with it."""
        at_a_desk = " with a screen at the card" * (bool(self.screen_bytes) and self.in_100 < _WORDS[0][0])
        return f"{self.word} ({self.in_100} in 100{at_a_desk})"

    @property
    def sentence(self) -> str:
        """Where the number comes from."""
        beside = f", with {format_gib(self.screen_bytes)} for a screen, if the card drives one"
        runs = f"{self.rows} measured runs ({self.group}){beside * bool(self.screen_bytes)}"
        return f"the chance is from {runs}; what would narrow it most: {self.narrowed_by}"
