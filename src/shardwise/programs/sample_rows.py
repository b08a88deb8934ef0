"""`python -m shardwise.programs.sample_rows FOLDER`: counts a job's rows for plans."""

import sys
from pathlib import Path

from shardwise.data.prepare.sample import sample_rows
from shardwise.errors import ShardwiseError
from shardwise.spec.run import RunDirectory

if __name__ == "__main__":
    try:
        sample_rows(RunDirectory(Path(sys.argv[1])))
    except ShardwiseError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    print("{}")
