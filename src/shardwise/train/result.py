"""What a finished run has in `final/`, for programs that use it."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardwise.errors import ModelError, ShardwiseError
from shardwise.models.content import folder_content
from shardwise.models.load import find_model_folder
from shardwise.models.weights import Weights
from shardwise.spec.run import RunDirectory, read_json


def base_of(run: RunDirectory) -> tuple[Path, Any]:
    """The folder of the model that a run's adapter was trained on, and how QLoRA quantised it (BitsAndBytesConfig, or
    None). Raises ModelError: it is not there, or a file of it has changed since."""
    from transformers import BitsAndBytesConfig

    files = ("adapter_config.json", "manifest.json", "config.json")
    adapter, manifest, config = (read_json(run.final / name) or {} for name in files)
    base = find_model_folder(str(adapter.get("base_model_name_or_path")), revision=adapter.get("revision"))
    now = folder_content(base, weights=Weights(base).files)
    for name, recorded in manifest.get("source", {}).items():
        if now.get(name) != recorded:
            message = f"is another file than the adapter in {run.final} was trained on; bring back the one it was"
            raise ModelError.at(base / name, message)
    said = config.get("quantization_config")
    return base, BitsAndBytesConfig.from_dict(said) if said else None


def run_program(action: Callable[..., None]) -> None:
    """Runs a program with the arguments that its command line holds as JSON; says a user's error on stderr."""
    from transformers.utils import logging as theirs

    # What the libraries deprecate or miss between themselves is not for the user of a model.
    warnings.simplefilter("ignore")
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    theirs.set_verbosity_error()
    theirs.disable_progress_bar()
    try:
        action(**json.loads(sys.argv[1]))
    except ShardwiseError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
