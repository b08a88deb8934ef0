"""`python -m shardwise.programs.rank RUN_DIR MODULE`: makes a process that torchrun or a cluster
started a rank whose output goes to one log, and that ends with what started it."""

import sys
from pathlib import Path

from shardwise.launch.processes.command import become_rank
from shardwise.spec.run import RunDirectory

if __name__ == "__main__":
    become_rank(RunDirectory(Path(sys.argv[1])), sys.argv[2])
