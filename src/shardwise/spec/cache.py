"""Where what can be made again is kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """`SHARDWISE_CACHE`, else `~/.cache/shardwise`."""
    stated = os.environ.get("SHARDWISE_CACHE")
    return Path(stated) if stated else Path.home() / ".cache" / "shardwise"
