"""Keeps docs/families.md: every family of the installed transformers' causal language models, put to the product.

python tools/families.py                        # runs all of them, and writes the page and docs/families.json
python tools/families.py --only llama mamba     # runs these, and renews their lines
python tools/families.py --check llama mamba    # runs these; exits 1 where a line says otherwise

Of each a model of a few thousand parameters is made from its configuration class. Its parameters are counted by
`shardwise plan`'s own code and by hand, and it takes two steps in float32, in full and with LoRA, each way that is
not refused: one process beside plain transformers and PEFT, row by row (loss and every gradient), and gloo ranks beside
one process (loss, gradient norm, every weight).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
import transformers

from tests.dist.every_family import METHODS, make_rows, put
from tests.dist.tiny import families

DOCS = Path(__file__).parent.parent / "docs"
PAGE, TABLE = DOCS / "families.md", DOCS / "families.json"

#: The ways that the page tells of.
SHOWN = ("single", "packed", "ddp", "fsdp", "pp", "tp")

#: Seconds that a family may take.
LIMIT = 600


def measured(names: Sequence[str], *, jobs: int, ways: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What became of each family, as they end; each in a process of its own, `jobs` at a time."""
    context, left, running = get_context("fork"), list(names), {}
    with tempfile.TemporaryDirectory() as scratch:
        os.environ |= {"SHARDWISE_CACHE": scratch, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        rows = make_rows(Path(scratch) / "rows.jsonl")
        while left or running:
            while left and len(running) < jobs:
                family = left.pop(0)
                near, far = context.Pipe()
                process = context.Process(target=_family, args=(family, Path(scratch) / family, rows, ways, far))
                process.start()
                far.close()
                running[near] = family, process, time.monotonic()
            for pipe in wait(list(running), timeout=1):
                family, process, begun = running.pop(pipe)  # pyright: ignore[reportArgumentType]
                try:
                    found = pipe.recv()  # pyright: ignore
                except EOFError:
                    found = {"refused": "failed: the process died", "cells": {}}
                process.join()
                yield family, {**found, "seconds": round(time.monotonic() - begun, 1)}
            for _, process, begun in running.values():
                if time.monotonic() - begun > LIMIT:
                    process.kill()


def _family(family: str, root: Path, rows: Path, ways: tuple[str, ...], pipe: Any) -> None:
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        torch.set_num_threads(1)
        transformers.logging.set_verbosity_error()
        pipe.send(put(family, root, rows, ways=ways))
    os._exit(0)


def page(table: dict[str, Any]) -> str:
    """The page, from what `docs/families.json` holds."""
    found: dict[str, dict[str, Any]] = table["families"]
    decoders = {name: one for name, one in found.items() if not _is_other(one)}
    counted = sum(one.get("planned") == one.get("count") is not None for one in decoders.values())
    lines = [
        "# Every family of transformers",
        "",
        f"Written by `make families`: each of the {len(found)} families that transformers {table['transformers']} maps",
        "to a causal language model was made tiny from its configuration class, counted, and trained two steps each",
        "way, in full and with LoRA: one process beside plain transformers and PEFT row by row (loss and every",
        "gradient), ranks beside one process. *Counted*: `shardwise plan` counts its parameters exactly. A way that a",
        "line neither lists nor explains was not run.",
        "",
        f"Of the {len(decoders)} that decode without an encoder {counted} are counted exactly; trained are",
        *_totals(decoders),
        "",
        "| family | counted | full | LoRA | what is not, and why |",
        "|---|---|---|---|---|",
        *(_line(name, found[name]) for name in sorted(found)),
    ]
    return "\n".join(lines) + "\n"


def _totals(decoders: dict[str, dict[str, Any]]) -> list[str]:
    ways = [
        f"{sum(one['cells'].get(f'{method}/{way}') == 'equal' for one in decoders.values())} {way} {method}"
        for way in SHOWN
        for method in METHODS
    ]
    return [", ".join(ways) + "."]


def _is_other(one: dict[str, Any]) -> bool:
    """Whether a family is no decoder: it is refused as what it is."""
    return any(word in one.get("refused", "") for word in ("it is an encoder", "of an encoder-decoder"))


def _line(name: str, one: dict[str, Any]) -> str:
    cells: dict[str, str] = one["cells"]
    trained = [", ".join(way for way in SHOWN if cells.get(f"{method}/{way}") == "equal") or "-" for method in METHODS]
    exact = one.get("planned") is not None and one["planned"] == one.get("count")
    counted = "yes" if exact else "no"
    return f"| {name} | {counted} | {' | '.join(trained)} | {_told(one)} |"


def _told(one: dict[str, Any]) -> str:
    whole = one.get("unbuilt") or one.get("refused")
    if whole:
        return _short(whole)
    by_reason: dict[str, list[str]] = {}
    for way in SHOWN:
        for method in METHODS:
            became = one["cells"].get(f"{method}/{way}", "equal")
            if became != "equal":
                by_reason.setdefault(_short(became), []).append(way)
    return "; ".join(f"{', '.join(dict.fromkeys(ways))}: {reason}" for reason, ways in by_reason.items())


def _short(reason: str) -> str:
    """The reason without what to write instead."""
    return reason.removeprefix("refused: ").partition("; ")[0].replace("|", "/").replace("\n", " ")[:200]


def _renewed(table: dict[str, Any], new: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {"transformers": transformers.__version__, "families": {**table.get("families", {}), **new}}


def main() -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description="Puts every family of transformers to the product.")
    parser.add_argument("--only", nargs="+", metavar="FAMILY")
    parser.add_argument("--check", nargs="+", metavar="FAMILY")
    parser.add_argument("--ways", nargs="+", default=SHOWN)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2)))
    parser.add_argument("--table", type=Path, default=TABLE)
    asked = parser.parse_args()
    table: dict[str, Any] = json.loads(asked.table.read_text()) if asked.table.is_file() else {}
    known: dict[str, dict[str, Any]] = table.get("families", {})
    differ = 0
    for name, found in measured(asked.check or asked.only or families(), jobs=asked.jobs, ways=tuple(asked.ways)):
        seconds = found.pop("seconds")
        print(f"{seconds:6.1f} s  {_line(name, found)}", flush=True)
        if asked.check:
            differ += found != known.get(name)
            continue
        known[name] = found
        asked.table.write_text(json.dumps(_renewed(table, known), indent=1, sort_keys=True) + "\n")
    if asked.check:
        sys.exit(f"{differ} lines of {asked.table.name} say otherwise" if differ else 0)
    if asked.table == TABLE:
        PAGE.write_text(page(_renewed(table, known)))


if __name__ == "__main__":
    main()
