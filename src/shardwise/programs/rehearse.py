"""`python -m shardwise.programs.rehearse < QUESTION`: rehearses ranks of an execution; writes JSON
lines: one as each begins, at last what each found, or the sentence that refused it."""

import json
import logging
import sys

from shardwise.launch.processes.parent_death import leash_forks
from shardwise.train.rehearsing.command import answer

if __name__ == "__main__":
    leash_forks()
    logging.disable(logging.WARNING)
    answers, sys.stdout = sys.stdout, sys.stderr  # where what libraries print goes
    answer(json.load(sys.stdin), write=lambda line: print(json.dumps(line), file=answers, flush=True))
