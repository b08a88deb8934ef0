"""`python -m shardwise.programs.rehearse < QUESTION`: rehearses ranks of an execution; writes JSON
lines: one as each begins, at last what each found, or the sentence that refused it."""

import json
import logging
import os
import signal
import sys
from functools import partial

from shardwise.launch.processes.parent_death import end_with_parent
from shardwise.train.rehearsing.command import answer

if __name__ == "__main__":
    os.register_at_fork(after_in_child=partial(end_with_parent, signal.SIGKILL))  # nothing is left of a killed one
    logging.disable(logging.WARNING)
    answers, sys.stdout = sys.stdout, sys.stderr  # where what libraries print goes
    answer(json.load(sys.stdin), write=lambda line: print(json.dumps(line), file=answers, flush=True))
