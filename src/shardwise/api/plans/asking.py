"""Reads what is asked, and settles what only its model can: whether rows are packed where `data.packing` is `auto`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shardwise.api.plans.shapes import find_model
from shardwise.spec import request as spec
from shardwise.spec.job.file import Override
from shardwise.spec.job.keys import Job
from shardwise.spec.request import Request
from shardwise.spec.support.rows import first, packed


def read_request(job: Job | str | Path | None, *, overrides: Sequence[str | Override] = ()) -> Request:
    """As `spec.request.read_request`. Rows are packed by `auto` where the model's code keeps documents apart; where it
    does not that is said, and rows are padded. Raises also ModelError: the model is not found."""
    request = spec.read_request(job, overrides=overrides)
    if request.job.data.packing != "auto":
        return request
    with request.blaming("model"):
        lacking = first([packed(find_model(request.job.model))])
    if lacking is not None:
        print(f"rows are padded: {lacking.row.what}", file=sys.stderr, flush=True)
    data = request.job.data.model_copy(update={"packing": lacking is None})
    return replace(request, job=request.job.model_copy(update={"data": data}))
