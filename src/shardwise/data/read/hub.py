"""Data sets and tokenizers from the Hugging Face Hub.

A data set is written once as Parquet into the cache, under the commit it came from. No code of a
repository is run: `datasets` reads data files only (since version 4).
"""

import hashlib
import os
from pathlib import Path
from typing import Any

from shardwise.catalog.hub import TOKENIZER_PATTERNS, repository_folder
from shardwise.catalog.models import hub_id
from shardwise.data.prepare.told import say
from shardwise.errors import DataError, said
from shardwise.spec.job.data import SourceSpec


def fetch_hub_rows(spec: SourceSpec, *, into: Path) -> tuple[Path, str]:
    """The Parquet file of a hub data set's split, and a note for the user. Where the hub does not
    answer, it is the newest copy in the cache. Raises DataError: `datasets` is not installed, or
    the data set cannot be loaded."""
    from huggingface_hub import HfApi

    say(f"{spec.path}: fetching the hub data set")
    folder = into / hashlib.sha256(f"{spec.path}\n{spec.name}\n{spec.split}".encode()).hexdigest()[:32]
    try:
        commit = HfApi().dataset_info(spec.path, timeout=10).sha
    except Exception as error:  # noqa: BLE001 - errors of the hub's libraries have no common base
        commit = None
        copies = sorted(folder.glob("*.parquet"), key=lambda path: path.stat().st_mtime)
        if copies:
            return copies[-1], f"the hub does not answer ({said(error)}); using the copy fetched before"
    target = folder / f"{commit or 'unknown'}.parquet"
    if not target.is_file():
        _export(spec, target, commit=commit)
    return target, f"hub data set, split {spec.split}, commit {commit or 'unknown'}"


def _export(spec: SourceSpec, target: Path, *, commit: str | None) -> None:
    dataset = load_split(spec, commit=commit)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        dataset.to_parquet(str(temporary))
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def load_split(spec: SourceSpec, *, commit: str | None = None) -> Any:
    """A split as `datasets.Dataset`, memory-mapped from its own cache. Raises DataError: `datasets`
    is not installed, or there is no such data set, configuration or split."""
    try:
        from datasets import load_dataset
    except ImportError:
        message = "is no file or folder here; to read it as a hub data set: pip install 'shardwise[hub]'"
        raise DataError.at(spec.path, message) from None
    try:
        return load_dataset(spec.path, name=spec.name, split=spec.split, revision=commit)
    except Exception as error:  # noqa: BLE001 - as above
        message = f"is no file or folder here, and cannot be loaded as a hub data set: {said(error)}"
        raise DataError.at(spec.path, message) from None


def tokenizer_folder(model: str, *, revision: str | None = None) -> Path:
    """The folder with a model's tokenizer, fetched if need be. Raises DataError: there is none."""
    local = Path(model)
    folder = local.parent if local.is_file() else local
    if folder.is_dir():
        return folder
    repository = hub_id(model)
    if (cached := _cached_snapshot(repository, revision)) is not None:
        return cached
    from huggingface_hub import snapshot_download

    patterns = [*TOKENIZER_PATTERNS, "config.json"]
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=patterns))
    except Exception as error:  # noqa: BLE001 - as above
        message = f"is no folder here, and its tokenizer cannot be fetched from the hub: {said(error)}"
        raise DataError.at(repository, message) from None


def _cached_snapshot(model: str, revision: str | None) -> Path | None:
    """The hub cache's folder for a model, found without importing the hub's library."""
    repository = repository_folder(model)
    reference = repository / "refs" / "main"
    if revision is None and not reference.is_file():
        return None
    snapshot = repository / "snapshots" / (revision or reference.read_text(encoding="utf-8").strip())
    return snapshot if (snapshot / "tokenizer_config.json").is_file() else None
