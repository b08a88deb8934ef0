"""Compares two runs of a job by step: counts equal, losses, norms, weights within a tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from shardwise.report.fields import number, text

VERSION = 1

#: Figures of a step, causes before effects. `close` ones are computed in floating point.
FIGURES: dict[str, Literal["exact", "close"]] = {
    "tokens": "exact",
    "trained_tokens": "exact",
    "epoch": "exact",
    "learning_rate": "exact",
    "loss": "close",
    "grad_norm": "close",
    "eval_loss": "close",
}

#: Figures that not every step has; both runs have them, or neither.
OCCASIONAL = frozenset({"eval_loss"})

WEIGHTS, STEP = "weights", "step"


@dataclass(frozen=True, kw_only=True)
class LayoutDifference:
    """The first difference of a layout from the reference. `step`: None where only the final
    weights differ; `figure`: a key of `FIGURES`, `step` (recorded by one run only), `weights`, or
    `run` (it failed); `note`: what the same comparison with another optimizer says."""

    layout: str
    figure: str
    step: int | None = None
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
        found, reference = map(_all_digits, (self.found, self.reference))
        what = f": {self.detail}" if self.detail else f" is {found}, on one process {reference}"
        return f"{self.layout} differs {at}: {self.figure}{what}" + (f"; {self.note}" if self.note else "")


def _all_digits(value: float | None) -> str:
    return "not recorded" if value is None else repr(int(value) if value.is_integer() else value)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """One layout beside the reference. `loss`, `grad_norm`: the largest relative difference of a
    step; `weights`: of `programs.difference`; `plain`: with SGD, where AdamW's runs differ;
    `damped`: with a large `adam_epsilon`, where SGD's agree."""

    layout: str
    processes: int
    run: str
    num_steps: int = 0
    loss: float | None = None
    grad_norm: float | None = None
    weights: dict[str, Any] | None = None
    first: LayoutDifference | None = None
    plain: Agreement | None = None
    damped: Agreement | None = None


@dataclass(frozen=True, kw_only=True)
class Parity:
    """The comparison of a job's layouts. `changes`: settings unlike the job's, a sentence each;
    `unable`: (layout, reason) of those that cannot run; `moved`: a learning rate was above 0."""

    reference: str
    num_steps: int
    tolerance: float
    changes: tuple[str, ...]
    layouts: tuple[Agreement, ...]
    unable: tuple[tuple[str, str], ...]
    moved: bool = True

    @property
    def first(self) -> LayoutDifference | None:
        """The earliest difference of all layouts."""

        def when(difference: LayoutDifference) -> float:
            at_the_end = -1.0 if difference.figure == "run" else float("inf")
            return at_the_end if difference.step is None else difference.step

        return min((layout.first for layout in self.layouts if layout.first is not None), key=when, default=None)

    @property
    def agrees(self) -> bool:
        """Whether every layout that ran agrees with the reference."""
        return self.first is None

    @property
    def sentence(self) -> str:
        """The verdict."""
        if self.first is not None:
            return self.first.sentence
        names = ", ".join(layout.layout for layout in self.layouts)
        return (
            f"the same training on one process and under {names}: {self.num_steps} steps, losses and gradient norms "
            f"within {self.tolerance:g}, counts and learning rates exact, {self._weights}"
        )

    @property
    def _weights(self) -> str:
        if not self.moved:
            return "and unchanged weights: the learning rate is 0 in every step (all are warm-up); use more steps"
        names = ", ".join(layout.layout for layout in self.layouts if layout.plain is not None)
        if not names:
            return "the same final weights"
        return (
            f"the same final weights, of {names} within adamw's own rounding: where a gradient is almost 0, adamw "
            "makes whole steps of rounding; with a larger adam_epsilon, and with sgd, the weights agree"
        )

    def to_json(self) -> dict[str, Any]:
        """The result as JSON; keys are added, never renamed."""
        plain = asdict(self)
        plain["unable"] = [{"layout": layout, "reason": reason} for layout, reason in self.unable]
        first = None if self.first is None else asdict(self.first)
        return {"version": VERSION, "agrees": self.agrees, "sentence": self.sentence, "first": first, **plain}


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
    """Compares two runs: records of metrics.jsonl, and what is known of their final weights."""
    ours, theirs = ({record[STEP]: record for record in records} for records in (reference, found))
    pairs = [(step, ours.get(step), theirs.get(step)) for step in sorted(ours.keys() | theirs.keys())]
    shared = [(one, other) for _, one, other in pairs if one is not None and other is not None]
    first = _first_of_steps(layout, pairs, tolerance=tolerance) or _of_weights(layout, weights)
    loss, grad_norm = (_largest(shared, figure) for figure in ("loss", "grad_norm"))
    compared = Agreement(layout=layout, processes=processes, run=run, weights=weights, first=first)
    return replace(compared, num_steps=len(shared), loss=loss, grad_norm=grad_norm)


def failed(layout: str, *, processes: int, run: str, reason: str) -> Agreement:
    """A layout whose run failed."""
    first = LayoutDifference(layout=layout, figure="run", detail=reason)
    return Agreement(layout=layout, processes=processes, run=run, first=first)


def _relative(reference: float, found: float) -> float:
    """|found - reference| / |reference|; 1 where only the reference is 0."""
    return abs(found - reference) / (abs(reference) or abs(found) or 1.0)


_Pair = tuple[int, dict[str, Any] | None, dict[str, Any] | None]


def _first_of_steps(layout: str, pairs: Sequence[_Pair], *, tolerance: float) -> LayoutDifference | None:
    if not pairs:
        return LayoutDifference(layout=layout, figure=STEP, detail="no step is recorded")
    for step, one, other in pairs:
        if one is None or other is None:
            who = "one process" if other is None else layout
            return LayoutDifference(layout=layout, step=step, figure=STEP, detail=f"recorded by {who} only")
        for figure in FIGURES:
            ours, theirs = number(one, figure), number(other, figure)
            if figure == "grad_norm" and one.get(figure, ours) is other.get(figure, theirs) is None and figure in one:
                continue  # both left the step out, because float16 overflowed
            if not _agree(figure, ours, theirs, tolerance=tolerance):
                return LayoutDifference(layout=layout, step=step, figure=figure, reference=ours, found=theirs)
    return None


def _agree(figure: str, reference: float | None, found: float | None, *, tolerance: float) -> bool:
    if reference is None or found is None:
        return figure in OCCASIONAL and reference is found
    return reference == found if FIGURES[figure] == "exact" else _relative(reference, found) <= tolerance


def _of_weights(layout: str, weights: dict[str, Any] | None) -> LayoutDifference | None:
    if weights is None:
        return LayoutDifference(layout=layout, figure=WEIGHTS, detail="there are no final weights to compare")
    detail = f"{weights['first']} {text(weights, 'reason')}"
    return LayoutDifference(layout=layout, figure=WEIGHTS, detail=detail) if text(weights, "first") else None


def _largest(shared: Sequence[tuple[dict[str, Any], dict[str, Any]]], figure: str) -> float | None:
    both = [(number(one, figure), number(other, figure)) for one, other in shared]
    return max((_relative(one, other) for one, other in both if one is not None and other is not None), default=None)


_SAME_WITH_SGD = "with sgd all of it is the same"
_SAME_DAMPED = "with sgd and with adamw damped all of it is the same"
_ROUNDING = f"{_SAME_DAMPED}: adamw amplifies rounding where a gradient is almost 0"


def may_be_rounding(found: Agreement) -> bool:
    """Whether a layout differs only in what is computed in floating point."""
    return found.first is not None and (found.first.figure == WEIGHTS or FIGURES.get(found.first.figure) == "close")


def looked_at_plainly(found: Agreement, plain: Agreement, *, most: float) -> Agreement:
    """The comparison with AdamW, after the one with SGD. Weights that agree with SGD, and differ by
    no more than AdamW's steps can make (`most`), count as equal; losses and norms do not."""
    if found.first is None:
        return found
    absolute, note = number(found.weights, "absolute"), _SAME_WITH_SGD
    if plain.first is not None:
        note = f"with sgd {_without_name(plain.first)}"
    elif absolute is not None and absolute > most:
        note += ", and adamw's steps of rounding cannot add up to this"
    elif absolute is not None and found.first.figure == WEIGHTS:
        return replace(found, plain=plain, first=None)
    return replace(found, plain=plain, first=replace(found.first, note=note))


def looked_at_damped(found: Agreement, seen: Agreement, damped: Agreement) -> Agreement:
    """The comparison with AdamW (`found`; `seen` after SGD's), after the one with a large
    `adam_epsilon`, which does not amplify rounding. An error in AdamW's own work still differs."""
    if found.first is None:
        return seen
    note = _ROUNDING
    if damped.first is not None:
        note = f"{_SAME_WITH_SGD}, with adamw damped {_without_name(damped.first)}"
    elif seen.first is None or seen.first.note != _SAME_WITH_SGD:
        return replace(seen, damped=damped)
    return replace(seen, damped=damped, first=replace(found.first, note=note))


def _without_name(difference: LayoutDifference) -> str:
    return difference.sentence.removeprefix(f"{difference.layout} ")
