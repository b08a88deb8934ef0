"""Asks the torch wing for the shape of a model that has no row in the catalogue: a child process, which builds it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from shardwise.errors import ModelError, Problem, quoted
from shardwise.launch.causes import how_it_ended
from shardwise.launch.leash import leashed
from shardwise.spec.model import ModelShape

SHAPE = "shardwise.models.shape"
#: Importing torch and building takes seconds; what takes longer is no model that is trained here.
LIMIT_SECONDS = 300


def built_shape(data: dict[str, Any], *, file: str, limit: float = LIMIT_SECONDS, module: str = SHAPE) -> ModelShape:
    """The shape of the model that transformers builds of a config.json called `file`. Raises ModelError: it cannot be
    built within `limit` seconds, or there is something in it that is not understood."""
    kind = quoted(data.get("model_type"))
    try:
        done = subprocess.run(
            leashed([sys.executable, "-m", module]),
            input=json.dumps({"config": data, "file": file}),
            capture_output=True,
            text=True,
            check=False,
            timeout=limit,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
        )
    except subprocess.TimeoutExpired:
        message = f"model_type {kind} has no row in the catalogue, and building it took more than {limit:g} s"
        raise ModelError(Problem(where=file, message=message)) from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        how = said[-1] if said else f"{module} {how_it_ended(done.returncode)}"
        message = f"model_type {kind} has no row in the catalogue, and building it failed: {how}"
        raise ModelError(Problem(where=file, message=message))
    answer: Any = json.loads(done.stdout)
    if "shape" not in answer:
        raise ModelError([Problem(where=file, message=reason) for reason in answer["refused"]])
    return ModelShape.from_json(answer["shape"])
