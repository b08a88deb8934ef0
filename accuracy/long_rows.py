"""Rows of 65,536 tokens and more of `stacks-2026.csv`, one by one: measured, forecast, and whether what ran fits.

python -m accuracy.long_rows [--published ../shared/published]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from accuracy.__main__ import PUBLISHED
from accuracy.compare import Compared, compare_memory
from accuracy.errors import Summary, summarise
from accuracy.rows import Published, read
from shardwise.units import GIB

LONG = 65_536
#: Mixtures whose experts' adapters are the source's own code, which no term here is of.
_EXPERTS = "and experts"


def long_rows(rows: Iterable[Published], *, mixtures: bool = False) -> list[Published]:
    """Those that are long; with `mixtures`, runs with adapters on experts too."""
    chosen = (row for row in rows if (row.whole("seq_len") or 0) >= LONG)
    return [row for row in chosen if mixtures or _EXPERTS not in row.text("lora_targets")]


def summary(compared: Compared) -> Summary | None:
    """Of all figures of memory."""
    return summarise(one.error for one in compared.comparisons)


def main() -> None:
    """Prints them."""
    parser = argparse.ArgumentParser(prog="python -m accuracy.long_rows", description=__doc__)
    parser.add_argument("--published", type=Path, default=PUBLISHED)
    rows = read(parser.parse_args().published / "stacks-2026.csv")
    for mixtures in (False, True):
        compared = compare_memory(long_rows(rows, mixtures=mixtures))
        found = summary(compared)
        sys.stdout.write(f"{'with' if mixtures else 'without'} adapters on experts: {found}\n")
        refused = [one.row_id for one in compared.feasibility if one.ran and not one.fits]
        sys.stdout.write(
            f"ran, and forecast not to fit: {', '.join(refused) or 'none'}; left out: {compared.left_out}\n"
        )
        for one in compared.comparisons:
            figures = f"{one.measured / GIB:6.1f} {one.forecast / GIB:6.1f} GiB {one.error:+.1%}"
            sys.stdout.write(f"  {one.row_id:28} {figures}\n")


if __name__ == "__main__":
    main()
