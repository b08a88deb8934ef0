"""`python -m shardwise.programs.model_shape < QUESTION`: writes the shape of the model that a
config.json describes, or sentences that say what is not understood, as JSON."""

import json
import sys
from typing import Any

from transformers import logging

from shardwise.errors import InputError
from shardwise.models.built.shape import built_shape


def main() -> None:
    """Reads a configuration from stdin and writes what became of it."""
    logging.set_verbosity_error()
    asked = json.load(sys.stdin)
    try:
        answer: dict[str, Any] = {"shape": built_shape(asked["config"], file=asked["file"]).to_json()}
    except InputError as error:
        answer = {"refused": [problem.message for problem in error.problems]}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
