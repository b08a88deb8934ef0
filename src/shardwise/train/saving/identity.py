"""What a checkpoint belongs to: job, model, data and the versions of the tokenizing libraries."""

import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from shardwise.errors import ModelError, Problem, quoted
from shardwise.spec.job.keys import HOW_IT_RUNS, LENGTH, Job
from shardwise.spec.job.places import Places


def identity_of(job: Job, *, model: Mapping[str, str], data: str) -> dict[str, Any]:
    """A run's identity as JSON; `model`: hashes of its files by name, `data`: its fingerprint."""
    plain = job.to_json()
    for key in HOW_IT_RUNS | LENGTH:
        section, _, name = key.rpartition(".")
        (plain[section] if section else plain).pop(name, None)
    if not (job.quantises_experts and plain["train"]["quantize_experts"] is True):
        del plain["train"]["quantize_experts"]  # as in runs that began before the key was there
    # Of the libraries that decide how text becomes tokens, as in the key of prepared data.
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "tokenizers")}
    return json.loads(json.dumps({"job": plain, "model": dict(model), "data": data, "versions": versions}))


def refuse_another(written: Mapping[str, Any], now: Mapping[str, Any], *, folder: str, places: Places) -> None:
    """Raises ModelError with each key or version that differs, or the model's files or the data."""
    if written == now:
        return
    of_job = [*_differences(written["job"], now["job"])]
    found = [
        (places.where(*key.split(".")), f"{key} is {quoted(new)}, and {folder} was written with {quoted(old)}")
        for key, old, new in of_job
    ]
    versions = _differences(written["versions"], now["versions"])
    found += [(folder, f"was written with {name} {old}, and {new} is installed") for name, old, new in versions]
    if not any(key == "model" for key, _, _ in of_job):
        message = f"of this model is another file than {folder} was written with, under the same name"
        others = [name for name, _, _ in _differences(written["model"], now["model"])]
        found += [(places.where("model"), f"{name} {message}") for name in others[:1]]
    changed = "rows, their order in files, the tokenizer's files or the chat template have changed"
    message = f"data.path: {folder} was written from other data by the same job: {changed}"
    found = found or [(places.where("data", "path"), message)]
    elsewhere = "bring back what it was written with, or use another output_dir"
    raise ModelError([Problem(where=where, message=f"{message}; {elsewhere}") for where, message in found])


def _differences(old: Any, new: Any, *, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted key, old value, new value) of all that differs; a missing key is None."""
    if isinstance(old, dict) and isinstance(new, dict):
        before, after = cast(dict[str, Any], old), cast(dict[str, Any], new)
        for key in sorted(before.keys() | after.keys()):
            yield from _differences(before.get(key), after.get(key), prefix=f"{prefix}.{key}" if prefix else key)
    elif old != new:
        yield prefix, old, new
