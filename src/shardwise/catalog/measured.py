"""What was measured of catalogue models whose family has no row: shapes as transformers builds
them, and profiles of their blocks in PyTorch's own code on a GPU. Written by tools/profiles.py."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

MEASURED = Path(__file__).parent / "measured"


def measured(config: dict[str, Any]) -> dict[str, Any] | None:
    """The `shape` of a config.json, its `profiles` by what of a job they depend on, and the
    version of `transformers`; None: it was not measured."""
    file = next(MEASURED.glob(f"*-{key_of(config)}.json.gz"), None)
    return None if file is None else json.loads(gzip.decompress(file.read_bytes()))


def key_of(config: dict[str, Any]) -> str:
    """What ends the name of a configuration's file."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
