"""Finds the shape of a job's model: in the catalogue, or by a process that builds it."""

from __future__ import annotations

from shardwise.catalog import models
from shardwise.catalog.stated import UnlistedFamilyError, can_build
from shardwise.launch.processes.torch_helpers import built_shape
from shardwise.spec.model.shape import ModelShape


def find_model(name: str, *, offline: bool = False, revision: str | None = None) -> ModelShape:
    """As the catalogue's `find_model`; a family without a row is built by transformers and read, and of a model of more
    than text, where transformers is there, all parts are counted."""
    try:
        shape = models.find_model(name, offline=offline, revision=revision)
    except UnlistedFamilyError as error:
        return built_shape(error.data, file=error.file)
    if shape.wrapper is None or shape.wrapper.frozen_parameters is not None or not can_build():
        return shape
    return built_shape(models.config_of(name, offline=offline, revision=revision), file=name)
