"""`verify`: compares training under each layout with training on one process."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.api.checks.comparing import Trying, read_trials
from shardwise.api.checks.proof import NOTHING_PROVEN, Proof
from shardwise.api.plans.shapes import find_model, read_request
from shardwise.api.runs.opening import Update
from shardwise.errors import InputError, UnsupportedError
from shardwise.launch.trials import REFERENCE, Unable, nothing_to_compare
from shardwise.report.parity import Agreement, Parity
from shardwise.spec.job.keys import Job
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.request import Override
from shardwise.spec.run import read_metrics

#: What the parity contract is stated for.
STEPS = 20
TOLERANCE = 1e-5

NO_FP16 = (
    "verify does not compare under fp16: losses of 16 bits agree within 2e-3 between layouts, and not within 1e-5; "
    "write precision: fp32 to compare the layouts of this job (what is proven of fp16: docs/support.md)"
)

#: What is set whatever the job says, and why.
FOR_PARITY: dict[str, tuple[Any, str]] = {
    "train.precision": ("fp32", "the same result is promised in float32"),
    "train.save_dtype": ("float32", "weights are compared as they were trained, before any rounding"),
    "lora.lora_dropout": (0.0, "what is dropped out differs from layout to layout, by chance"),
    "train.disable_dropout": (True, "the model has dropout of its own, which differs from layout to layout, by chance"),
    "train.save_steps": (0, "nothing is resumed"),
    "train.report_to": ([], "a proof is no experiment to track"),
}


def verify(
    job: Job | str | Path,
    *,
    layouts: Sequence[str] | None = None,
    overrides: Sequence[str | Override] = (),
    steps: int = STEPS,
    tolerance: float = TOLERANCE,
    on_update: Callable[[Update | Trying], None] | None = None,
) -> Parity:
    """Trains a job on one process and under each kind of layout this machine can run, and compares.

    Each run is made anew, in float32, in OUTPUT_DIR/verify/LAYOUT-PROCESSES. `layouts`: names such
    as `fsdp` or `fsdp-4`; `all` is every way, schedule and product, None one of each kind; `steps`:
    of each run, at most the job's `max_steps`; epochs are repeated as often as needed; `tolerance`:
    of losses, gradient norms and weights, relative to those of one process. Raises InputError: the
    job cannot be used, or no layout but one process can run here; WorkerFailedError: the one
    process failed; StoppedError: a signal stopped it."""
    if steps < 1 or not 0 <= tolerance < 1:
        raise InputError(f"steps is {steps} and tolerance {tolerance:g}; expected at least 1, and a share below 1")
    request = read_request(job, overrides=overrides)
    stated = request.job
    if stated.train.precision == "fp16":
        raise UnsupportedError.at(request.where("train", "precision"), NO_FP16)
    common, changes = for_parity(
        stated, model=find_model(stated.model, offline=True, rope=stated.rope_scaling), steps=steps
    )
    overrides = (*overrides, *common)
    asked = read_trials(job, layouts=layouts, overrides=overrides, on_update=on_update)
    others = tuple(trial for trial in asked.trials if trial != REFERENCE)
    if not others:
        raise nothing_to_compare(asked.unable, beside=" one process with")
    trials = replace(asked, trials=(REFERENCE, *others))
    proof = Proof(trials, tolerance=tolerance)
    found = [one for one in trials.each(proof.of, stopped=NOTHING_PROVEN) if one is not None]
    if all(isinstance(one, Unable) for one in found):
        unable = [*asked.unable, *(one for one in found if isinstance(one, Unable))]
        raise nothing_to_compare(unable, beside=" one process with")
    records = read_metrics(proof.reference)
    return Parity(
        reference=str(proof.reference.root),
        num_steps=len(records),
        tolerance=tolerance,
        changes=changes,
        layouts=tuple(one for one in found if isinstance(one, Agreement)),
        unable=tuple((one.layout, one.reason) for one in (*asked.unable, *found) if isinstance(one, Unable)),
        moved=any(record["learning_rate"] for record in records),
    )


def for_parity(job: Job, *, model: ModelShape, steps: int) -> tuple[tuple[Override, ...], tuple[str, ...]]:
    """The overrides of `FOR_PARITY` for a job, and a sentence for each that changes it."""
    plain = {**job.to_json(), **_in_force(job, model)}
    wanted = {**FOR_PARITY, "train.max_steps": (min(steps, job.train.max_steps or steps), "as many are compared")}
    overrides: list[Override] = []
    changes: list[str] = []
    for key, (value, why) in wanted.items():
        section, name = key.split(".")
        if plain[section] is None or plain[section].get(name, value) == value:
            continue
        overrides.append(Override(text=f"{key}={json.dumps(value)}", where=f"verify sets {key}"))
        changes.append(f"{key} is {_yaml(value)} here, {_yaml(plain[section][name])} in the job: {why}")
    return tuple(overrides), tuple(changes)


def _in_force(job: Job, model: ModelShape) -> dict[str, Any]:
    """Sections of a job with `auto` resolved, and without what makes no difference to its model."""
    train = job.train.model_dump(mode="json")
    if job.adapters is None and train["save_dtype"] == "auto":
        train["save_dtype"] = model.storage_dtype
    elif train["save_dtype"] == "auto":
        del train["save_dtype"]  # adapters are saved as they are trained
    if not model.drops_out:
        del train["disable_dropout"]
    return {"train": train, "lora": None if job.adapters is None else job.adapters.model_dump(mode="json")}


def _yaml(value: Any) -> str:
    return "not set" if value is None else value if isinstance(value, str) else json.dumps(value)
