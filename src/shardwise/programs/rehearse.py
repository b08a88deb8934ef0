"""`python -m shardwise.programs.rehearse < QUESTION`: rehearses ranks of an execution; writes JSON lines: one as each
of them begins, and at last what each found, or the sentence with which it was refused."""

import json
import logging
import sys
from typing import Any

from shardwise.train.rehearsing.command import answer


def main() -> None:
    """Answers on stdout; what libraries print goes to stderr."""
    logging.disable(logging.WARNING)
    answers, sys.stdout = sys.stdout, sys.stderr

    def write(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=answers, flush=True)

    answer(json.load(sys.stdin), write=write)


if __name__ == "__main__":
    main()
