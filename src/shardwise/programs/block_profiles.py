"""`python -m shardwise.programs.block_profiles < QUESTION`: measures what blocks of a model keep and do under some
executions of a job; writes their profiles as JSON, or the sentence that says why there are none."""

import json
import logging
import sys

from shardwise.train.rehearsing.profiles import answer


def main() -> None:
    """Answers on stdout; what libraries print goes to stderr."""
    logging.disable(logging.WARNING)
    answers, sys.stdout = sys.stdout, sys.stderr
    json.dump(answer(json.load(sys.stdin)), answers)


if __name__ == "__main__":
    main()
