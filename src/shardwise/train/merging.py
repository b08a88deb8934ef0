"""Merges the adapter of a run into its base model, and compares their logits in float32."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shardwise.catalog.processors import available_memory
from shardwise.data.store import open_prepared
from shardwise.errors import DataError, WorkerFailedError
from shardwise.models.load import build_on_meta, read_config
from shardwise.models.nf4 import quantised_and_back, quantised_layers
from shardwise.spec.run import RunDirectory, read_json, write_json
from shardwise.train.precision import type_name
from shardwise.train.result import base_of, run_program
from shardwise.train.saving.atomic import commit, removed_on_error, seal
from shardwise.units import format_gib

#: Rows that are compared, and tokens of each.
ROWS, TOKENS = 8, 128
#: Relative to the largest logit: what float32 loses where a product is added before a matrix is multiplied, not after.
TOLERANCE = 1e-5

Logits = list[torch.Tensor]


def merge(run_dir: str, target: str, dtype: str | None, dequantised: bool) -> None:
    """Writes the merged model, one model in memory at a time, compares it where float32 fits there, and prints what was
    done as JSON. Raises ModelError: the base is not what was trained on; WorkerFailedError: the logits differ."""
    run, end = RunDirectory(Path(run_dir)), Path(target)
    base, quantisation = base_of(run)
    stored = read_config(base).dtype or torch.float32
    saved = getattr(torch, dtype) if dtype else stored
    whole = build_on_meta(read_config(base), attn_implementation="eager")
    needed, free = 4 * sum(p.numel() for p in whole.parameters()), available_memory()
    compares = needed < 0.9 * free
    loaded, rows, kind = (torch.float32, *_rows(run, base)) if compares else (stored, [], "")
    computed = None if quantisation is None else quantisation.bnb_4bit_compute_dtype
    onto = computed if dequantised else None
    trained = [] if onto is computed else _logits(_adapted(base, run, loaded, quantised=computed), rows)
    model = _adapted(base, run, loaded, quantised=onto)
    together = _logits(model, rows)
    model = model.merge_and_unload()
    exact = _agree(together, _logits(model, rows), what="base and adapter")
    rounded = _logits(_cast(_cast(model, saved), loaded), rows)
    for leftover in end.parent.glob(f".{end.name}.*"):
        shutil.rmtree(leftover)  # of a merge that was killed
    folder = end.with_name(f".{end.name}.{uuid.uuid4().hex[:8]}")
    with removed_on_error(folder):
        _save(_cast(model, saved), run, folder)
        del model
        written = _logits(_load(folder, loaded), rows) if compares else []
        _agree(rounded, written, what="what was to be written")
        answer = {
            "folder": target,
            "base": str(base),
            "onto": "base" if computed is None else "dequantised" if dequantised else "unquantised",
            "dtype": type_name(saved),
            "rows": f"{len(rows)} {kind} rows",
            "largest_logit": _largest(trained or together),
            "difference": _apart(trained or together, written) if compares else None,
            "exact_difference": exact if compares else None,
            "unchecked": None if compares else f"float32 takes {format_gib(needed)}, and {format_gib(free)} are free",
        }
        files = {str(path.relative_to(folder)): seal(path) for path in folder.rglob("*") if path.is_file()}
        write_json(folder / "manifest.json", {"files": files, "merged": answer})
        commit(folder, end)
    print(json.dumps(answer))


def _adapted(base: Path, run: RunDirectory, dtype: torch.dtype, *, quantised: torch.dtype | None) -> Any:
    """The base with the adapter of a run; with `quantised`, its matrices as training dequantised them."""
    from peft import PeftModel

    model = _load(base, dtype)
    if quantised is not None:
        for layer in quantised_layers(model).values():
            layer.weight.data = quantised_and_back(layer.weight.data, dtype=quantised).to(dtype)
    model: Any = PeftModel.from_pretrained(model, str(run.final)).eval()
    head = model.get_base_model().get_output_embeddings()
    if hasattr(head, "base_layer"):  # what is merged into a tied head is not for the embedding
        head.base_layer.weight = nn.Parameter(head.base_layer.weight.detach().clone(), requires_grad=False)
    return model


def _load(folder: Path, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def _cast(model: Any, dtype: torch.dtype) -> Any:
    """Casts weights in place; `Module.to` would round rotary frequencies too, which no file holds."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def _save(model: Any, run: RunDirectory, folder: Path) -> None:
    """Model, tokenizer and chat template. Tied weights of which one was trained are two from now on."""
    model.config.tie_word_embeddings = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    model.generation_config = type(model.generation_config)()  # the base's own is copied: it may be one that none saves
    model.save_pretrained(folder)
    for path in run.final.iterdir():
        if not path.name.startswith(("adapter", "config", "manifest")):
            (shutil.copytree if path.is_dir() else shutil.copyfile)(path, folder / path.name)


def _rows(run: RunDirectory, base: Path) -> tuple[Logits, str]:
    """Some rows as token ids [1, length], and which they are: random ones where the prepared data is gone."""
    data = read_json(run.data) or {}
    try:
        prepared = open_prepared(data["eval"] or data["train"])
    except (DataError, KeyError):
        ids = torch.randint(read_config(base).vocab_size, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0))
        return list(ids.split(1)), "random"
    samples = [prepared.sample(index)[0][:TOKENS] for index in range(min(ROWS, len(prepared)))]
    return [torch.from_numpy(ids).unsqueeze(0) for ids in samples], "evaluation" if data["eval"] else "training"


@torch.no_grad()
def _logits(model: Any, rows: Logits) -> Logits:
    return [model(ids).logits[0] for ids in rows]


def _largest(logits: Logits) -> float:
    return max((float(one.abs().max()) for one in logits), default=0.0)


def _apart(one: Logits, other: Logits) -> float:
    return _largest([a - b for a, b in zip(one, other, strict=True)])


def _agree(expected: Logits, found: Logits, *, what: str) -> float:
    apart, largest = _apart(expected, found), _largest(expected)
    if apart <= TOLERANCE * max(1.0, largest):  # not so for NaN
        return apart
    raise WorkerFailedError(
        f"logits of the merged model differ by up to {apart:.1e} from those of {what}, of which the largest is "
        f"{largest:.1f}; nothing was kept. Please report this with the run's resolved.yaml"
    )


if __name__ == "__main__":
    run_program(merge)
