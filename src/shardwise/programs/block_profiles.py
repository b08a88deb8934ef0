"""`python -m shardwise.programs.block_profiles < QUESTION`: measures what blocks of a model keep and do under some
executions of a job; writes their profiles as JSON, or the sentence that says why there are none."""

import json
import logging
import sys

from shardwise.train.rehearsing.profiles import answer

if __name__ == "__main__":
    logging.disable(logging.WARNING)
    answers, sys.stdout = sys.stdout, sys.stderr  # where what libraries print goes
    json.dump(answer(json.load(sys.stdin)), answers)
