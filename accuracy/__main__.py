"""`python -m accuracy`: reads the published tables, compares, and writes docs/accuracy.md with its pictures."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from accuracy.compare import compare_memory, compare_throughput
from accuracy.document import strict, write
from accuracy.picture import scatter
from accuracy.rows import read
from shardwise.units import GIB

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT.parent / "shared/published"
TABLES = ("memory.csv", "throughput.csv", "stacks-2026.csv")


def main() -> None:
    """Compares and writes; exits 2 where a table is missing."""
    parser = argparse.ArgumentParser(prog="python -m accuracy", description=__doc__)
    parser.add_argument(
        "--published", type=Path, default=PUBLISHED, help="folder of memory.csv, throughput.csv and stacks-2026.csv"
    )
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where accuracy.md and its pictures go")
    arguments = parser.parse_args()
    missing = [name for name in TABLES if not (arguments.published / name).is_file()]
    if missing:
        sys.stderr.write(
            f"{' and '.join(missing)} not found in {arguments.published}: the published figures lie beside the "
            "repository, not in it; name their folder with --published, or make accuracy PUBLISHED=...\n"
        )
        sys.exit(2)
    older, rates, newer = (read(arguments.published / name) for name in TABLES)
    memory, throughput = compare_memory([*older, *newer]), compare_throughput([*rates, *newer])
    arguments.docs.mkdir(exist_ok=True)
    page = write(memory, throughput, date=f"{datetime.now(tz=UTC):%Y-%m-%d}")
    pictures = {
        "accuracy-memory.svg": scatter(
            strict(memory.comparisons),
            title="Peak memory per GPU",
            unit="GiB",
            unit_size=GIB,
        ),
        "accuracy-throughput.svg": scatter(throughput.comparisons, title="Throughput", unit="tokens/s"),
    }
    for name, text in {"accuracy.md": page, **pictures}.items():
        (arguments.docs / name).write_text(text, encoding="utf-8")
    sys.stdout.write(page[page.index("## Memory") : page.index("## What is fitted")])


if __name__ == "__main__":
    main()
