"""`python -m shardwise.programs.sample_rows FOLDER`: counts a job's rows for plans."""

import sys
from collections.abc import Sequence
from pathlib import Path

from shardwise.data.prepare.sample import sample_rows
from shardwise.errors import ShardwiseError
from shardwise.spec.run import RunDirectory


def main(arguments: Sequence[str]) -> int:
    """The command; returns the exit code. Errors are sentences on stderr."""
    try:
        sample_rows(RunDirectory(Path(arguments[0])))
    except ShardwiseError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print("{}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
