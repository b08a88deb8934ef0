"""`python -m shardwise.programs.data_worker`: prepares chunks, as lines of JSON on stdin ask."""

import os
import sys
from typing import Any, cast

from shardwise.data.workers.worker import serve


def main() -> None:
    """Serves stdin. What libraries print goes to stderr; torch is hidden from transformers, to start faster."""
    sys.modules["torch"] = cast(Any, None)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as replies:
        os.dup2(2, 1)
        serve(sys.stdin, replies)


if __name__ == "__main__":
    main()
