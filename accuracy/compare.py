"""Every published row against the forecast: comparisons, feasibility, and a reason for each row that is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from accuracy.cases import Case, LeftOutError, case_of
from accuracy.errors import relative
from accuracy.forecast import Answer, answer
from accuracy.rivals import estimates
from accuracy.rows import Published, memory_figures, tokens_per_second
from accuracy.stacks import under_deepspeed


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One measured figure beside its forecast.

    Attributes:
        kind: of memory figure, or `tokens/s`.
        deepspeed: transformers' Trainer had its engine.
        plain: the forecast for our trainer, without the terms of the row's own stack.
        rivals: other tools' estimates.
    """

    row_id: str
    source: str
    grade: str
    kind: str
    measured: float
    forecast: float
    plain: float
    rivals: dict[str, float]
    deepspeed: bool = False

    @property
    def error(self) -> float:
        """Relative, signed."""
        return relative(self.forecast, self.measured)

    @property
    def plain_error(self) -> float:
        """Likewise, of the forecast for our trainer."""
        return relative(self.plain, self.measured)


@dataclass(frozen=True, kw_only=True)
class Feasibility:
    """Whether a row ran, and whether it was forecast to fit.

    Attributes:
        filled: the upper end of the forecast over the GPU's memory.
    """

    row_id: str
    source: str
    grade: str
    ran: bool
    filled: float
    fits: bool
    plain_fits: bool


@dataclass(frozen=True, kw_only=True)
class Compared:
    """All rows of one table.

    Attributes:
        left_out: how many rows for each reason.
    """

    num_rows: int
    comparisons: tuple[Comparison, ...]
    feasibility: tuple[Feasibility, ...]
    left_out: dict[str, int]


def compare_memory(rows: Iterable[Published]) -> Compared:
    """Memory figures of every kind, and whether what ran was forecast to fit."""
    comparisons: list[Comparison] = []
    feasibility: list[Feasibility] = []
    left_out: Counter[str] = Counter()
    count = 0
    for row in rows:
        count += 1
        try:
            case = case_of(row)
            found = answer(case)
        except LeftOutError as reason:
            left_out[str(reason)] += 1
            continue
        figures = memory_figures(row)
        if not row.ran and "Non-zero exit code" in row.text("notes"):
            left_out["failed, and it is not said that memory was short"] += 1
            continue
        comparisons += [_memory(case, found, kind=kind, measured=figures[kind]) for kind in figures]
        feasibility.append(
            Feasibility(
                row_id=row.row_id,
                source=row.source,
                grade=row.grade,
                ran=row.ran,
                filled=found.filled,
                fits=found.fits,
                plain_fits=found.plain_fits,
            )
        )
        if row.ran and not figures:
            left_out["no figure that could be compared, feasibility only"] += 1
    return Compared(
        num_rows=count, comparisons=tuple(comparisons), feasibility=tuple(feasibility), left_out=dict(left_out)
    )


def compare_throughput(rows: Iterable[Published]) -> Compared:
    """Tokens per second over all GPUs."""
    comparisons: list[Comparison] = []
    left_out: Counter[str] = Counter()
    count = 0
    for row in rows:
        count += 1
        try:
            comparisons.append(_throughput(case_of(row)))
        except LeftOutError as reason:
            left_out[str(reason)] += 1
    return Compared(num_rows=count, comparisons=tuple(comparisons), feasibility=(), left_out=dict(left_out))


def _memory(case: Case, found: Answer, *, kind: str, measured: float) -> Comparison:
    return Comparison(
        row_id=case.row.row_id,
        source=case.row.source,
        grade=case.row.grade,
        kind=kind,
        measured=measured,
        forecast=found.memory[kind],
        plain=found.plain_memory[kind],
        rivals=estimates(case),
        deepspeed=under_deepspeed(case.row),
    )


def _throughput(case: Case) -> Comparison:
    length = case.job.data.max_length
    measured = tokens_per_second(
        case.row,
        num_gpus=case.cluster.num_gpus,
        step_tokens=case.job.train.global_batch_size * length,
        length=length,
    )
    if not measured:
        raise LeftOutError("no rate is stated, or one rounded to a whole number below ten")
    forecast = answer(case).tokens_per_second
    return Comparison(
        row_id=case.row.row_id,
        source=case.row.source,
        grade=case.row.grade,
        kind="tokens/s",
        measured=measured,
        forecast=forecast,
        plain=forecast,
        rivals={},
    )
