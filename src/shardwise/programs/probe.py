"""`python -m shardwise.programs.probe JSON`: prints the rates of this machine as JSON."""

import json
import sys

from shardwise.train.measuring.probe import measure

if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
