"""Finds the shape of a job's model, and profiles of blocks that no rule knows, which are kept."""

import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shardwise.catalog import models
from shardwise.catalog.models import measured, scaled_config, scaled_shape
from shardwise.catalog.stated import UnlistedFamilyError, installed
from shardwise.launch.processes.helpers import block_profiles, built_shape
from shardwise.plan import open_executions
from shardwise.spec import request as spec
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.file import Override
from shardwise.spec.job.keys import Job
from shardwise.spec.job.rope import RopeScaling
from shardwise.spec.job.strict import from_plain
from shardwise.spec.model.profile import ModelProfile, alike_from
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.request import Request
from shardwise.spec.run import cache_root, read_json, write_json
from shardwise.spec.support.rows import first, packed

#: Grows when what a profile counts changes, so that older ones are made again.
_FORM = 8
#: Packages whose code a profile is of.
_MEASURED = ("shardwise", "torch", "transformers", "peft")
#: And those whose kernels transformers runs on a GPU.
_KERNELS = ("causal_conv1d", "fla")


def find_model(
    name: str, *, offline: bool = False, revision: str | None = None, rope: RopeScaling | None = None
) -> ModelShape:
    """As the catalogue's `find_model`; a family without a row is built by transformers and read,
    and of a model of more than text, where transformers is there, all parts are counted."""
    try:
        shape, file = models.find_model(name, offline=offline, revision=revision, rope=rope), name
        if shape.wrapper is None or shape.wrapper.frozen_parameters is not None or not installed():
            return shape
    except UnlistedFamilyError as error:
        file = error.file
    stated = models.config_of(name, offline=offline, revision=revision)
    return scaled_shape(_built(json.dumps(scaled_config(stated, rope)), file), rope, stated)


@lru_cache(maxsize=64)
def _built(config: str, file: str) -> ModelShape:
    """`built_shape`, once: a training asks before its plan, at its start and for its report."""
    return built_shape(json.loads(config), file=file)


def read_request(job: Job | str | Path | None, *, overrides: Sequence[str | Override] = ()) -> Request:
    """As `spec.request.read_request`; `packing: auto` packs rows where the model's code keeps
    documents apart. Raises also ModelError: there is no such model."""
    request = spec.read_request(job, overrides=overrides)
    if request.job.data.packing != "auto":
        return request
    with request.blaming("model"):
        lacking = first([packed(find_model(request.job.model, rope=request.job.rope_scaling))])
    if lacking is not None:
        print(f"rows are padded: {lacking.row.what}", file=sys.stderr, flush=True)
    data = request.job.data.model_copy(update={"packing": lacking is None})
    return replace(request, job=request.job.model_copy(update={"data": data}))


def profiled(model: ModelShape, job: Job, clusters: Iterable[Cluster]) -> ModelShape:
    """A model with the profiles that a job needs where no rules forecast its blocks, kept below
    `cache_root`. A model that cannot be measured stays without."""
    if not model.counted:
        return model
    kinds = {cluster.gpu.kind: cluster for cluster in clusters}
    made = (_profiles(model, job, cluster) for cluster in kinds.values())
    return replace(model, profiles=tuple(profile for profiles in made for profile in profiles))


def _profiles(model: ModelShape, job: Job, cluster: Cluster) -> tuple[ModelProfile, ...]:
    executions = [execution.to_json() for execution in open_executions(job, model, cluster)]
    question: dict[str, Any] = {
        "config": models.config_of(job.model, rope=job.rope_scaling),
        "executions": executions,
        "cuda": cluster.gpu.kind == "cuda",
        "kernels": [name for name in _KERNELS if cluster.gpu.kind == "cuda" and find_spec(name) is not None],
    }
    under = measured_under(job, alike_from(job.data.max_length, question["config"]))
    known = measured(question["config"]) if question["cuda"] and not question["kernels"] else None
    shipped = tuple(from_plain(ModelProfile, one) for one in (known or {}).get("profiles", {}).get(under, ()))
    asked = {(one["precision"], one["attn_implementation"], one["gradient_checkpointing"]) for one in executions}
    if asked <= {(one.precision, one.attention, one.recompute) for one in shipped}:
        return shipped
    file = _kept(question, measured_under(job, job.data.max_length))
    kept = read_json(file)
    if kept is not None:
        with suppress(TypeError):
            return tuple(from_plain(ModelProfile, one) for one in kept["profiles"])
    print(f"measuring what blocks of {model.family} keep, once ...", file=sys.stderr, flush=True)
    made = block_profiles({**question, "job": job.to_json(), "shape": model.to_json()})
    if isinstance(made, str):
        print(f"blocks of {model.family} could not be measured: {made}", file=sys.stderr, flush=True)
        return ()
    with suppress(OSError):
        write_json(file, {"profiles": [asdict(profile) for profile in made]})
    return made


def measured_under(job: Job, length: int) -> str:
    """What profiles depend on beside a model and executions, as JSON; `length`: of a job's rows."""
    adapters = None if job.adapters is None else job.adapters.model_dump(mode="json")
    return json.dumps([job.method, adapters, length, job.data.packing, job.train.disable_dropout], sort_keys=True)


def _kept(question: dict[str, Any], own: str) -> Path:
    versions: dict[str, str] = {}
    for name in _MEASURED:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    told = json.dumps([_FORM, question, own, versions], sort_keys=True)
    return cache_root() / "profiles" / f"{hashlib.sha256(told.encode()).hexdigest()[:32]}.json"
