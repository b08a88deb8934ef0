"""One rank: `python -m shardwise.programs.worker RUN_DIR`, from launcher, torchrun or cluster."""

import sys
from pathlib import Path

from shardwise.spec.run import RunDirectory
from shardwise.train.watching.watchdog import end_process
from shardwise.train.worker import run_rank


def main() -> int:
    """Runs one rank; returns the exit status."""
    if len(sys.argv) != 2:
        print("usage: python -m shardwise.programs.worker RUN_DIR", file=sys.stderr)
        return 2
    return run_rank(RunDirectory(Path(sys.argv[1]).resolve()))


if __name__ == "__main__":
    end_process(main())
