"""`python -m shardwise.programs.data_worker`: prepares chunks, as lines of JSON on stdin ask."""

import os
import sys
from typing import Any, cast

from shardwise.data.workers.worker import serve

if __name__ == "__main__":
    sys.modules["torch"] = cast(Any, None)  # hidden from transformers, to start faster
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as replies:
        os.dup2(2, 1)  # what libraries print goes to stderr
        serve(sys.stdin, replies)
