"""Measures Shardwise on GPUs: `make gpu` (one, ten minutes) and `make gpu-many`; no network.

Sections run in order of importance until the time is over; each has a time of its own, and one that fails or hangs
stops no other. Every figure becomes a line with a verdict in docs/gpu.json, from which `python tools/gpu.py --write`
makes docs/how/measured.md. Sections that were not run keep their lines where machine, versions and commit are the same.

    python benchmarks/gpu/run.py                            # all that fits in ten minutes
    python benchmarks/gpu/run.py --minutes 30 --only peers seeds
    python benchmarks/gpu/run.py --device cpu               # tiny models: tests this script, measures nothing
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from threading import Semaphore

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "benchmarks"), str(ROOT / "src")]
NEEDED = ("torch", "transformers", "peft", "pydantic", "ruamel.yaml", "typer", "rich", "jinja2")
for missing in [name for name in NEEDED if find_spec(name.split(".")[0]) is None]:
    sys.exit(f"{missing} is not installed; run `make gpu` without READY, or pip install '.[train]'")

import many  # noqa: E402
import right  # noqa: E402
import rules  # noqa: E402
import timing  # noqa: E402
from bench import Bench, Figures, LateError  # noqa: E402

from shardwise import __version__  # noqa: E402
from shardwise.catalog.devices import visible_gpus  # noqa: E402

LIBRARIES = ("torch", "transformers", "peft")
GIT = ("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
PEERS = ("liger_kernel", "unsloth", "trl", "bitsandbytes", "flash_attn")


@dataclasses.dataclass(frozen=True)
class Section:
    """One section.

    Attributes:
        seconds: that its commands may take together.
        models: that must lie there.
        alone: it times, so that nothing else may run.
    """

    measure: Callable[[Bench], Figures]
    seconds: float
    models: tuple[str, ...] = ()
    alone: bool = True

    @property
    def name(self) -> str:
        """What --only takes."""
        return self.measure.__name__


ONE = [
    Section(timing.machine, 60),
    Section(timing.lora_8b, 150, ("8b",)),
    Section(timing.lora_8b_recompute, 150, ("8b",)),
    Section(timing.full_1b, 120, ("1b",)),
    Section(timing.start, 200, ("toy",)),
    Section(right.memory, 400, ("0.5b",), alone=False),
    Section(right.numbers, 200, ("toy",), alone=False),
    Section(right.resume, 250, ("toy",), alone=False),
    Section(right.failures, 250, ("toy", "0.5b"), alone=False),
    Section(right.final, 150, ("toy",), alone=False),
    Section(right.recompute, 150, ("toy",), alone=False),
    Section(right.offload, 200, ("0.5b",), alone=False),
    Section(right.syncs, 150, ("toy",), alone=False),
    Section(timing.seeds, 120, ("tinyllama",)),
    Section(timing.choice, 250, ("8b",)),
    Section(timing.packed, 200, ("0.5b",)),
    Section(timing.peers, 400, ("8b",)),
    Section(timing.codellama, 500),
]
MANY = [
    Section(timing.machine, 60),
    Section(many.links, 60),
    Section(many.verify, 300, ("toy",)),
    Section(many.layouts, 300, ("0.5b",)),
    Section(many.rank_killed, 60, ("toy",)),
    Section(many.rank_stopped, 90, ("toy",)),
    Section(many.moved, 120, ("toy",)),
    Section(many.torchrun, 120, ("toy",)),
    Section(many.orders, 300, ("toy",)),
    Section(many.starts, 300, ("toy",)),
]


def main() -> None:
    """Runs the sections and writes what they found; exits 1 where a line says FAIL."""
    args = arguments()
    of = MANY if args.many else ONE
    chosen = [section for section in of if not args.only or section.name in args.only]
    bench = Bench(
        folder=args.folder.resolve(),
        device=args.device,
        over=time.monotonic() + 60 * args.minutes,
        processes=args.processes if args.many else 1,
    )
    about = facts(args.device, bench.processes)
    told = earlier(args.out, about) if args.only else {}
    bench.known.update({line["what"]: line["figure"] for lines in told.values() for line in lines})
    for group in groups(chosen):
        wide = not group[0].alone and bench.is_cuda
        slots = Semaphore(max(1, min(3, (os.cpu_count() or 1) // 4)) if wide else 1)
        found = bench.map(functools.partial(measured, dataclasses.replace(bench, slots=slots)), group)
        for section, figures in zip(group, found, strict=True):
            bench.known.update({f"{section.name}.{name}": figure for name, figure in figures.items()})
            told[section.name] = rules.lines(section.name, figures, device=about["device"])
            print("\n".join(shown(line) for line in told[section.name]), flush=True)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({**about, "sections": told}, indent=1) + "\n", encoding="utf-8")
    failed = [line["what"] for lines in told.values() for line in lines if line["verdict"] == "FAIL"]
    print("\n  ".join([f"written to {args.out}; {len(failed)} FAIL", *failed]))
    sys.exit(1 if failed else 0)


def measured(bench: Bench, section: Section) -> Figures:
    """A section's figures, or why there are none."""
    try:
        bench.models(section.models)
        return section.measure(bench.within(section.seconds))
    except LateError:
        return {"left_out": "no time was left"}
    except Exception as error:  # noqa: BLE001 - whatever goes wrong in one section is a line of it
        return {"failed": f"{type(error).__name__}: {error}"[:300]}


def groups(sections: list[Section]) -> list[list[Section]]:
    """Neighbours that may run side by side."""
    found: list[list[Section]] = []
    for section in sections:
        if found and not section.alone and not found[-1][0].alone:
            found[-1].append(section)
        else:
            found.append([section])
    return found


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--many", action="store_true", help="the sections for two and more GPUs")
    parser.add_argument("--processes", type=int, default=2, help="of those")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--only", nargs="+", metavar="SECTION", choices=sorted({one.name for one in ONE + MANY}))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--folder", type=Path, default=ROOT / ".bench/gpu", help="for models and runs")
    parser.add_argument("--out", type=Path, help="docs/gpu.json, or docs/gpu-many.json; for CPUs in the folder")
    args = parser.parse_args()
    name = "gpu-many.json" if args.many else "gpu.json"
    args.out = args.out or (ROOT / "docs" if args.device == "cuda" else args.folder) / name
    return args


def facts(device: str, processes: int) -> Figures:
    """When, on what and with which versions."""
    git = subprocess.run(GIT, capture_output=True, text=True, check=False)
    gpus = visible_gpus() if device == "cuda" else []
    if device == "cuda" and len(gpus) < processes:
        sys.exit(f"nvidia-smi shows {len(gpus)} GPUs, and {processes} are measured; --device cpu tests this script")
    versions = {"python": platform.python_version()}
    for name in (*LIBRARIES, *PEERS):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    named = {"device": gpus[0].name, "driver": gpus[0].driver} if gpus else {"device": "cpu"}
    begun = {"date": time.strftime("%Y-%m-%d"), "package": __version__, "commit": git.stdout.strip()}
    return {**begun, **named, "processes": processes, "versions": versions}


def earlier(path: Path, about: Figures) -> dict[str, list[Figures]]:
    """Lines of sections that were run before, on the same machine with the same versions and commit."""
    held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    same = all(held.get(key) == about[key] for key in about if key != "date")
    return held.get("sections", {}) if same else {}


def shown(line: Figures) -> str:
    """A line for the terminal."""
    figure = f"{line['figure']:,.4g}" if isinstance(line["figure"], float) else str(line["figure"])
    return f"{line['verdict']:5} {line['what']:44} {figure} {line['unit']}  {line['wanted']}"


if __name__ == "__main__":
    main()
