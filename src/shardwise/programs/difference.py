"""`python -m shardwise.programs.difference JSON`: compares the safetensors of two folders `a` and
`b`, such as `final/` of two runs, tensor by tensor; prints one JSON line."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from safetensors import SafetensorError

from shardwise.train.saving.difference import difference


def main(asked: str) -> int:
    """Returns the exit code: 2, with a sentence, where one of them cannot be read."""
    bounds = json.loads(asked)
    a, b = (Path(bounds.pop(name)) for name in ("a", "b"))
    try:
        print(json.dumps(asdict(difference(a, b, **bounds))))
    except (OSError, SafetensorError) as error:
        print(f"the weights cannot be compared: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
