"""`python -m shardwise.programs.prepare RUN_DIR [--brief]`: from a job's data to data.json."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from shardwise.data.prepare.prepare import prepare
from shardwise.data.prepare.told import say
from shardwise.errors import ShardwiseError
from shardwise.spec.run import RunDirectory


def main(arguments: Sequence[str]) -> int:
    """The command; returns the exit code. Errors are sentences on stderr."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        prepare(RunDirectory(Path(arguments[0])), announce="--brief" not in arguments)
    except ShardwiseError as error:
        for line in str(error).splitlines():
            say(f"error: {line}")
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
