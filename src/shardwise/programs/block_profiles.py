"""`python -m shardwise.programs.block_profiles < QUESTION`: measures what a model's blocks keep and
do under executions of a job; writes profiles as JSON, or a sentence why there are none."""

import json
import logging
import sys

from shardwise.launch.processes.parent_death import leash_forks
from shardwise.train.rehearsing.command import answer_profiles

if __name__ == "__main__":
    leash_forks()
    logging.disable(logging.WARNING)
    answers, sys.stdout = sys.stdout, sys.stderr  # where what libraries print goes
    json.dump(answer_profiles(json.load(sys.stdin)), answers)
