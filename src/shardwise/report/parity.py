"""Is it the same training? Two runs of one job, step by step and figure by figure, and the first that differs.

What is counted must be equal; what is computed in floating point must agree within a tolerance, relative to the
reference: ranks add in another order than one process does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from shardwise.report.fields import as_number, number, text

VERSION = 1

#: Figures of a step in the order in which one leads to the next, so that the first that differs is nearest the cause.
FIGURES: dict[str, Literal["exact", "close"]] = {
    "tokens": "exact",
    "trained_tokens": "exact",
    "epoch": "exact",
    "learning_rate": "exact",
    "loss": "close",
    "grad_norm": "close",
    "eval_loss": "close",
}

#: Not every step has these; where one run has recorded one, the other must have too.
OCCASIONAL = frozenset({"eval_loss"})

WEIGHTS = "weights"
STEP = "step"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where a layout first departs from the reference.

    Attributes:
        step: None where the runs agree up to their end and the weights do not.
        figure: a key of `FIGURES`, `step` (recorded by one run only), `weights`, or `run` (it did not end well).
        reference, found: None is "not recorded".
        detail: what there is to say instead of two values.
        note: what a second look at it says.
    """

    layout: str
    step: int | None
    figure: str
    reference: float | None = None
    found: float | None = None
    detail: str = ""
    note: str = ""

    @property
    def sentence(self) -> str:
        """`fsdp-2 differs at step 7: grad_norm is 1.25, on one process 1.2`."""
        if self.figure == "run":
            return f"{self.layout} did not train: {self.detail}"
        at = "after the last step" if self.step is None else f"at step {self.step}"
        if self.detail:
            return f"{self.layout} differs {at}: {self.figure}: {self.detail}{self._beside}"
        found, reference = _value(self.found), _value(self.reference)
        return f"{self.layout} differs {at}: {self.figure} is {found}, on one process {reference}{self._beside}"

    @property
    def _beside(self) -> str:
        return f"; {self.note}" if self.note else ""


def _value(value: float | None) -> str:
    """Every digit: the difference may lie in the last."""
    return "not recorded" if value is None else repr(int(value) if value.is_integer() else value)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """One layout beside the reference.

    Attributes:
        run: its run directory.
        num_steps: steps recorded by both.
        loss, grad_norm: the largest relative difference of a step; None where no step was compared.
        weights: what `shardwise.train.difference` says; None where the runs had no final weights to compare.
        first: where it first differs; None where it agrees.
        plain: the same beside each other with plain SGD, which was tried where AdamW's differ; None where it was not.
        damped: the same with an AdamW that makes no steps of rounding, which was tried where SGD's agree.
    """

    layout: str
    processes: int
    run: str
    num_steps: int
    loss: float | None
    grad_norm: float | None
    weights: dict[str, Any] | None
    first: Difference | None
    plain: Agreement | None = None
    damped: Agreement | None = None


@dataclass(frozen=True, kw_only=True)
class Parity:
    """The parity table of a job.

    Attributes:
        reference: the run directory of the one process that all others are compared with.
        changes: what is not as the job says, one sentence each.
        unable: (layout, reason) of those that cannot run here.
        moved: some step had a learning rate, so that equal weights say something.
    """

    reference: str
    num_steps: int
    tolerance: float
    changes: tuple[str, ...]
    layouts: tuple[Agreement, ...]
    unable: tuple[tuple[str, str], ...]
    moved: bool = True

    @property
    def first(self) -> Difference | None:
        """The earliest difference of all layouts; of those at the same step, the first in the table."""
        found = [layout.first for layout in self.layouts if layout.first is not None]
        return min(found, key=_when) if found else None

    @property
    def agrees(self) -> bool:
        """Every layout that ran is the same training as one process."""
        return self.first is None

    @property
    def sentence(self) -> str:
        """The verdict."""
        if self.first is not None:
            return self.first.sentence
        names = ", ".join(layout.layout for layout in self.layouts)
        return (
            f"the same training on one process and under {names}: {self.num_steps} steps, losses and gradient norms "
            f"within {self.tolerance:g}, counts and learning rates exact, {self._weights}{self._rounded}"
        )

    @property
    def _weights(self) -> str:
        if self.moved:
            return "the same final weights"
        return (
            "and weights that were not to move: the learning rate is 0 in every step, all of which are warm-up; more "
            "steps say more"
        )

    @property
    def _rounded(self) -> str:
        """What is the same but for AdamW's own rounding."""
        names = [layout.layout for layout in self.layouts if layout.plain is not None]
        if not names:
            return ""
        return (
            f", of {', '.join(names)} within adamw's own rounding: it makes whole steps of that where a gradient is "
            "next to nothing; with an adam_epsilon that damps those, and with sgd, all of it is the same"
        )

    def to_json(self) -> dict[str, Any]:
        """For programs; keys are added, never renamed."""
        plain = asdict(self)
        plain["unable"] = [{"layout": layout, "reason": reason} for layout, reason in self.unable]
        first = None if self.first is None else asdict(self.first)
        return {"version": VERSION, "agrees": self.agrees, "sentence": self.sentence, "first": first, **plain}


def _when(difference: Difference) -> float:
    if difference.figure == "run":
        return -1.0
    return float("inf") if difference.step is None else float(difference.step)


Records = Sequence[dict[str, Any]]


def agreement(
    layout: str,
    *,
    processes: int,
    run: str,
    reference: Records,
    found: Records,
    weights: dict[str, Any] | None,
    tolerance: float,
) -> Agreement:
    """Compares the records of metrics.jsonl of two runs, and what is known of their final weights."""
    pairs = _pairs(reference, found)
    shared = [(one, other) for _, one, other in pairs if one is not None and other is not None]
    first = _first_of_steps(layout, pairs, tolerance=tolerance) or _of_weights(layout, weights)
    return Agreement(
        layout=layout,
        processes=processes,
        run=run,
        num_steps=len(shared),
        loss=_largest(shared, "loss"),
        grad_norm=_largest(shared, "grad_norm"),
        weights=weights,
        first=first,
    )


def failed(layout: str, *, processes: int, run: str, reason: str) -> Agreement:
    """A layout that should have run and did not come to its end."""
    first = Difference(layout=layout, step=None, figure="run", detail=reason)
    return Agreement(
        layout=layout, processes=processes, run=run, num_steps=0, loss=None, grad_norm=None, weights=None, first=first
    )


def relative(reference: float, found: float) -> float:
    """|found - reference| / |reference|; a reference of zero is met or missed by the whole."""
    return abs(found - reference) / (abs(reference) or abs(found) or 1.0)


_Pair = tuple[int, dict[str, Any] | None, dict[str, Any] | None]


def _pairs(reference: Records, found: Records) -> list[_Pair]:
    ours, theirs = ({record[STEP]: record for record in records} for records in (reference, found))
    return [(step, ours.get(step), theirs.get(step)) for step in sorted(ours.keys() | theirs.keys())]


def _first_of_steps(layout: str, pairs: Sequence[_Pair], *, tolerance: float) -> Difference | None:
    if not pairs:
        return Difference(layout=layout, step=None, figure=STEP, detail="no step is recorded")
    for step, one, other in pairs:
        if one is None or other is None:
            who = "one process" if other is None else layout
            return Difference(layout=layout, step=step, figure=STEP, detail=f"recorded by {who} only")
        for figure in FIGURES:
            ours, theirs = number(one, figure), number(other, figure)
            if not _agree(figure, ours, theirs, tolerance=tolerance):
                return Difference(layout=layout, step=step, figure=figure, reference=ours, found=theirs)
    return None


def _agree(figure: str, reference: float | None, found: float | None, *, tolerance: float) -> bool:
    if reference is None or found is None:
        return figure in OCCASIONAL and reference is found
    return reference == found if FIGURES[figure] == "exact" else relative(reference, found) <= tolerance


def _of_weights(layout: str, weights: dict[str, Any] | None) -> Difference | None:
    if weights is None:
        return Difference(layout=layout, step=None, figure=WEIGHTS, detail="there are no final weights to compare")
    name = text(weights, "first")
    if name is None:
        return None
    return Difference(layout=layout, step=None, figure=WEIGHTS, detail=f"{name} {text(weights, 'reason')}")


def _largest(shared: Sequence[tuple[dict[str, Any], dict[str, Any]]], figure: str) -> float | None:
    both = [(as_number(one.get(figure)), as_number(other.get(figure))) for one, other in shared]
    found = [relative(one, other) for one, other in both if one is not None and other is not None]
    return max(found, default=None)
