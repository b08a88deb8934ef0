"""Families without a row in the catalogue: refused, or left to those who can build the model and read its shape."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

from shardwise.catalog.stated import refuse_foreign
from shardwise.errors import ModelError, Problem, quoted

#: Layers above which nothing is built.
MAX_LAYERS = 1_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}")
#: Where transformers lists its models, by version.
_LISTS = ("auto_mappings.py", "configuration_auto.py")


class UnlistedFamilyError(ModelError):
    """The installed transformers has a family without a row in the catalogue: its shape can be read from a build."""

    def __init__(self, data: dict[str, Any], *, file: str) -> None:
        message = f"model_type {quoted(data.get('model_type'))} has no row in the catalogue, and was not built"
        super().__init__(Problem(where=file, message=message))
        self.data = data
        self.file = file


def unlisted(data: dict[str, Any], *, file: str, known: list[str]) -> ModelError:
    """What to raise for a family without a row: that it must be built, or that it is not known."""
    kind = data.get("model_type")
    installed = _installed()
    if isinstance(kind, str) and installed is not None and _has(installed, kind):
        refuse_foreign(data, file=file)
        layers = data.get("num_hidden_layers")
        if isinstance(layers, int) and not 1 <= layers <= MAX_LAYERS:
            message = f"num_hidden_layers is {layers}; expected a whole number from 1 to {MAX_LAYERS}"
            return ModelError.at(file, message)
        return UnlistedFamilyError(data, file=file)
    code = "; the Python code that auto_map names is never run" if data.get("auto_map") else ""
    build = (
        ""
        if installed is not None
        else (
            "; with `pip install shardwise[train]`, other families that transformers has are counted by building them"
        )
    )
    message = f"model_type {quoted(kind)} is not known{code}{build}; known are {', '.join(known)}"
    return ModelError.at(file, message)


def _installed() -> Path | None:
    """The folder of the installed transformers; None where transformers or torch is missing."""
    try:
        found = [importlib.util.find_spec(name) for name in ("transformers", "torch")]
    except (ModuleNotFoundError, ValueError):
        return None
    folders = [spec.submodule_search_locations if spec else None for spec in found]
    return Path(folders[0][0]) if folders[0] and folders[1] else None


def _has(transformers: Path, kind: str) -> bool:
    """Whether transformers lists a family of that name."""
    if _NAME.fullmatch(kind) is None:
        return False
    entry = re.compile(rf'"{re.escape(kind)}"\s*[:,]')
    lists = [transformers / "models" / "auto" / name for name in _LISTS]
    return any(entry.search(path.read_text(encoding="utf-8")) for path in lists if path.is_file())
