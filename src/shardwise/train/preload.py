"""Loads the libraries that a rank's model needs while data is still being prepared."""

import sys
from contextlib import suppress
from typing import Any, cast

from shardwise.spec.job.file import read_job
from shardwise.spec.job.keys import Job
from shardwise.spec.run import RunDirectory, read_json


def preload_libraries(run: RunDirectory) -> None:
    """Imports the model's module, and PEFT for LoRA. What cannot be imported is left to the build, which says why."""
    with suppress(Exception):
        job = read_job(run.resolved)
        leave_out_bitsandbytes(job)
        import transformers
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[(read_json(run.plan) or {})["model"]["family"]])
        if job.adapters is not None:
            import peft  # noqa: F401
        import_schedules(job)


def import_schedules(job: Job) -> None:
    """Imports transformers' schedules, and without adapters not PEFT, which comes with them."""
    modules = cast(dict[str, Any], sys.modules)
    hides = job.adapters is None and "peft" not in modules
    if hides:
        modules["peft"] = None
    with suppress(ImportError):  # the build imports them as they are
        import transformers.optimization  # noqa: F401
    if hides:
        del modules["peft"]


def leave_out_bitsandbytes(job: Job) -> None:
    """Makes it as good as not installed where nothing is quantised: PEFT imports it wherever it is, in seconds."""
    if job.method != "qlora" and not job.train.optimizer_rule.in_8_bits:
        cast(dict[str, Any], sys.modules).setdefault("bitsandbytes", None)
