"""`python -m accuracy.chances`: how far measured memory lies from its forecast, into the
catalogue's measured_errors.toml.

Rows are our own (`accuracy/grid/cells.csv`) and published ones, each with the terms of its stack.
Every source has the same weight, whatever the number of its rows; of our own runs a family of
models is a source. Coverage is held out by source: how many rows of one lie in the range that 90 in
100 of the others lie in.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from accuracy.__main__ import PUBLISHED, ROOT
from accuracy.cases import LeftOutError, case_of
from accuracy.forecast import answer
from accuracy.grid.compare import CELLS, compared, read_cells
from accuracy.rows import ACTIVE, ALLOCATED, RESERVED, memory_figures, read
from shardwise.catalog.calibration import LEAST_ROWS, OTHERS, OWN, group_name, layout_kind

TABLES = ("memory.csv", "stacks-2026.csv")
OUT = ROOT / "src/shardwise/catalog/measured_errors.toml"
#: Ratios are written at so many places, each with as much weight between them.
PLACES = 50


@dataclass(frozen=True, kw_only=True)
class Score:
    """`ratio`: measured over forecast."""

    stack: str
    layout: str
    source: str
    ratio: float


def own() -> Iterator[Score]:
    """Of our own runs, on CPU processes."""
    for cell, ranks in read_cells(CELLS):
        for one in compared(cell, ranks):
            if one.measured.seen_whole:
                kind = layout_kind(one.execution.layout)
                ratio = one.measured.peak / one.forecast_peak
                yield Score(stack=OWN, layout=kind, source=cell.family, ratio=ratio)


def published(folder: Path) -> Iterator[Score]:
    """Of published rows of grade A and B that state which memory they mean."""
    for row in (row for name in TABLES if (folder / name).is_file() for row in read(folder / name)):
        try:
            case = case_of(row)
            found = answer(case)
        except LeftOutError:
            continue
        figures = memory_figures(row)
        for kind in (RESERVED, ACTIVE, ALLOCATED):
            if kind in figures:
                layout = layout_kind(case.execution.layout)
                ratio = figures[kind] / found.memory[kind]
                yield Score(stack=OTHERS, layout=layout, source=row.source, ratio=ratio)
                break


def weighted(scores: Iterable[Score]) -> list[tuple[float, float]]:
    """Ratios in growing order, each with its share of all weight; sources weigh alike."""
    some = list(scores)
    counts = {source: sum(one.source == source for one in some) for source in {one.source for one in some}}
    return sorted((one.ratio, 1 / (counts[one.source] * len(counts))) for one in some)


def at(ordered: list[tuple[float, float]], share: float) -> float:
    """The smallest ratio that has so much weight at or below it."""
    so_far = 0.0
    for ratio, weight in ordered:
        so_far += weight
        if so_far >= share - 1e-9:
            return ratio
    return ordered[-1][0]


def groups(scores: list[Score]) -> dict[str, list[Score]]:
    """By stack and kind of layout; by stack alone where there are fewer than `LEAST_ROWS` rows."""
    found: dict[str, list[Score]] = {}
    for one in scores:
        found.setdefault(group_name(one.stack), []).append(one)
        found.setdefault(group_name(one.stack, one.layout), []).append(one)
    whole = {OWN, OTHERS}
    return {name: some for name, some in found.items() if name in whole or len(some) >= LEAST_ROWS}


def coverage(scores: list[Score]) -> list[tuple[str, int, float, float]]:
    """Of each source: its rows, the share of them that lie in the range of 90 in 100 of the others,
    and half of the width of that range."""
    found: list[tuple[str, int, float, float]] = []
    for source in sorted({one.source for one in scores}):
        others = weighted(one for one in scores if one.source != source)
        if not others:
            continue
        low, high = at(others, 0.05), at(others, 0.95)
        inside = [low <= one.ratio <= high for one in scores if one.source == source]
        found.append((source, len(inside), sum(inside) / len(inside), (high - low) / 2))
    return found


def text(made: Mapping[str, list[Score]]) -> str:
    """measured_errors.toml."""
    lines = [
        "# Measured memory over its forecast, written by `python -m accuracy.chances` from our own runs on CPUs",
        "# (accuracy/grid/cells.csv) and published ones with the terms of their stacks. Sources weigh alike.",
        "# ratios: in growing order, with as much weight between each two.",
    ]
    for name, scores in sorted(made.items()):
        ordered = weighted(scores)
        ratios = ", ".join(f"{at(ordered, (place + 0.5) / PLACES):.4f}" for place in range(PLACES))
        sources = len({one.source for one in scores})
        lines += [f'\n["{name}"]', f"rows = {len(scores)}", f"sources = {sources}", f"ratios = [{ratios}]"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Writes measured_errors.toml, and says what is covered."""
    parser = argparse.ArgumentParser(prog="python -m accuracy.chances")
    parser.add_argument("--published", type=Path, default=PUBLISHED)
    scores = [*own(), *published(parser.parse_args().published)]
    OUT.write_text(text(groups(scores)), encoding="utf-8")
    for stack in (OWN, OTHERS):
        found = coverage([one for one in scores if one.stack == stack])
        rows = sum(count for _, count, _, _ in found)
        inside = sum(count * share for _, count, share, _ in found) / rows
        widths = sorted(width for *_, width in found)
        by_source, half = sum(share for *_, share, _ in found) / len(found), widths[len(widths) // 2]
        print(f"{stack}: {rows} rows of {len(found)} sources: {inside:.1%} in the range of 90 in 100 of the others,")
        print(f"  by source {by_source:.1%}, half-width {half:.1%}")
        for source, count, share, width in found:
            print(f"    {source}: {count} rows, {share:.0%} inside, half-width {width:.1%}")


if __name__ == "__main__":
    main()
