"""Compares the weights of two folders tensor by tensor, and prints one JSON line.

python -m shardwise.programs.difference A B [--tolerance 1e-5] [--floor 1e-6]

A and B hold safetensors, such as `final/` of two runs.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from safetensors import SafetensorError

from shardwise.train.saving.difference import difference


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares two folders. Exits 2 with a sentence where one cannot be read."""
    parser = argparse.ArgumentParser()
    parser.add_argument("a", type=Path)
    parser.add_argument("b", type=Path)
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--floor", type=float, default=0.0)
    options = parser.parse_args(arguments)
    try:
        found = difference(options.a, options.b, tolerance=options.tolerance, floor=options.floor)
    except (OSError, SafetensorError) as error:
        print(f"the weights cannot be compared: {error}", file=sys.stderr)
        return 2
    print(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
