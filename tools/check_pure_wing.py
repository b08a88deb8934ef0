"""Proves that the pure wing works without torch: imports all of it where the torch wing's libraries cannot be imported.

import-linter reads the source; this runs it, so that an import hidden behind `importlib` or a dependency shows too.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

PURE_WING = ("errors", "units", "api", "spec", "catalog", "plan", "launch", "report", "interop", "web", "cli")
ABSENT = (
    "torch",
    "numpy",
    "transformers",
    "tokenizers",
    "safetensors",
    "peft",
    "pyarrow",
    "datasets",
    "pandas",
    "psutil",
)


class Absent:
    """A finder of `sys.meta_path` that makes the libraries of the torch wing as good as not installed."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"{fullname} was imported by the pure wing", name=fullname)


def module_names(part: str) -> list[str]:
    """A module, or a package with all that lies in it."""
    module = importlib.import_module(f"shardwise.{part}")
    below = pkgutil.walk_packages(getattr(module, "__path__", []), prefix=f"{module.__name__}.")
    return [module.__name__, *(found.name for found in below)]


def main() -> None:
    """Imports everything and says how much it was."""
    sys.meta_path.insert(0, Absent())
    names = [name for part in PURE_WING for name in module_names(part)]
    for name in names:
        importlib.import_module(name)
    present = sorted({name.partition(".")[0] for name in sys.modules} & set(ABSENT))
    if present:
        sys.exit(f"the pure wing imported {', '.join(present)}")
    print(f"pure wing: {len(names)} modules imported with {', '.join(ABSENT)} absent")


if __name__ == "__main__":
    main()
