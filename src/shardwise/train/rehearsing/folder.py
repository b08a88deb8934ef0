"""The run directory of a rehearsal: rows of full length, and a model with only file headers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shardwise.data.store import DTYPES, OPTIONAL, VERSION
from shardwise.models.load import build_on_meta, read_config
from shardwise.spec.job.keys import Job
from shardwise.spec.run import RunDirectory, write_json
from shardwise.train.saving.safetensors_writer import Entry, write_hole

#: Files are mapped into memory, and some systems map none that is larger than their memory.
_FILE_BYTES = 2**30


def write_rows(run: RunDirectory, job: Job, *, count: int) -> None:
    """data.json and its store: `count` samples, each the same row of `max_length` trained tokens,
    or twice it; of an answer to be compared the first token is a prompt."""
    length, folder, sides = job.data.max_length, run.root / "rows", job.sides
    arrays: dict[str, Any] = {
        "tokens": np.zeros(length),
        "trained": np.ones(length),
        "offsets": [0, length],
        "doc_file": [0],
        "doc_line": [1],
        "sample_offsets": np.arange(count + 1) * sides,
        "sample_docs": np.zeros(count * sides),
        "lengths": np.full(count, length),
        "counts": np.full(count, (length - 1) * sides),
        "sample_source": np.zeros(count),
    }
    folder.mkdir(parents=True)
    kinds = DTYPES | (OPTIONAL if job.objective == "kto" else {})
    arrays["doc_label"] = [True]
    stored = {name: np.asarray(arrays[name]).astype(kind) for name, kind in kinds.items()}
    for name, data in stored.items():
        data.tofile(folder / f"{name}.bin")
    files, sizes = ["a row of full length"], {name: data.nbytes for name, data in stored.items()}
    manifest = {"version": VERSION, "sizes": sizes, "files": files, "weights": [1.0], "sides": sides}
    write_json(folder / "manifest.json", {**manifest, "packed": job.data.packing, "max_length": length})
    train = {"folder": str(folder), "files": files, "num_samples": count, "num_tokens": count * sides * length}
    write_json(run.data, {"train": train, "eval": None, "padding_id": 0, "fingerprint": "rehearsal"})


def write_model(folder: Path, config: dict[str, Any], *, dtype: torch.dtype) -> Path:
    """A model folder for a config.json: the weights that transformers builds of it, as files that
    take no space. Raises ModelError, UnsupportedError: there is no such model."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    model = build_on_meta(read_config(folder), attn_implementation="eager")
    files: list[dict[str, Entry]] = [{}]
    held = 0
    for name, parameter in model.named_parameters():
        if held >= _FILE_BYTES:
            files.append({})
            held = 0
        files[-1][name] = entry = Entry(dtype=dtype, shape=tuple(parameter.shape))
        held += entry.nbytes
    for number, entries in enumerate(files):
        write_hole(folder / f"model-{number}.safetensors", entries)
    weight_map = {name: f"model-{number}.safetensors" for number, entries in enumerate(files) for name in entries}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder
