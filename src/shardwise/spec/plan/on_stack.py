"""OnStack: what another trainer needs for the execution that a plan chose."""

from dataclasses import dataclass

from shardwise.units import format_gib


@dataclass(frozen=True, kw_only=True)
class OnStack:
    """Memory per GPU of the chosen execution in another trainer.

    Attributes:
        target: as `export --to` names it; `version`: that this holds for.
        peak_bytes: with what lies outside the allocator; `peak_high_bytes`: the upper end.
        terms: what is other than in this trainer -> the bytes that the peak has for it.
        setting: what of its settings takes these away; empty where none does.
        checked: how this is known: measured steps of toys, or published rows.
        source: the code that it was read from.
    """

    target: str
    version: str
    peak_bytes: int
    peak_high_bytes: int
    capacity_bytes: int
    peak_instant: str
    terms: dict[str, int]
    setting: str
    checked: str
    source: str

    @property
    def fits(self) -> bool:
        """Whether the upper end does."""
        return self.peak_high_bytes <= self.capacity_bytes

    @property
    def sentence(self) -> str:
        """For people: what it needs, and for what."""
        parts = [f"{name} take {format_gib(count)}" for name, count in self.terms.items()]
        first = next(iter(self.terms), "").startswith(("logits", "AdamW"))
        goes = f", {'the first of ' * (len(parts) > 1)}which goes with {self.setting}" if self.setting and first else ""
        why = f"; {' and '.join(parts)}{goes}" if parts else ""
        return (
            f"for {self.target} {self.version} ({self.checked}): {format_gib(self.peak_bytes)}, at most "
            f"{format_gib(self.peak_high_bytes)}{why}; what is below is of this trainer"
        )
