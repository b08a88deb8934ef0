"""Merges the adapter of a run into its base model, and compares their logits."""

from __future__ import annotations

import json
import shutil
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

#: Rows that are compared, and tokens of each.
ROWS, TOKENS = 8, 128


def merge(run_dir: str, target: str, dtype: str | None, dequantised: bool) -> None:
    """Writes the merged model, compares it, and prints what was done as JSON. One model is in memory at a time: in
    float32, or in its own type where memory is too small. Raises ModelError: the base is not what was trained on;
    WorkerFailedError: the logits differ."""
    run, end = RunDirectory(Path(run_dir)), Path(target)
    base, quantisation = base_of(run)
    computed = None if quantisation is None else quantisation.bnb_4bit_compute_dtype
    stored, rows, kind = read_config(base).dtype or torch.float32, *_rows(run)
    saved = getattr(torch, dtype) if dtype else stored
    parameters = build_on_meta(read_config(base), attn_implementation="eager").parameters()
    loaded = torch.float32 if sum(4 * p.numel() for p in parameters) < 0.9 * available_memory() else stored
    onto = computed if dequantised else None
    trained = None if onto is computed else _logits(_adapted(base, run, loaded, quantised=computed), rows)
    model = _adapted(base, run, loaded, quantised=onto)
    together = _logits(model, rows)
    model = model.merge_and_unload()
    exact = _agree(together, _logits(model, rows), of="base and adapter", dtype=loaded)
    rounded = _logits(_cast(_cast(model, saved), loaded), rows)
    folder = end.with_name(f".{end.name}.unfinished")
    shutil.rmtree(folder, ignore_errors=True)  # of a merge that was killed
    with removed_on_error(folder):
        _save(_cast(model, saved), run, folder)
        del model
        written = _logits(_load(folder, loaded), rows)
        _agree(rounded, written, of="what was to be written", dtype=loaded)
        expected = together if trained is None else trained
        answer = {
            "folder": target,
            "base": str(base),
            "onto": "base" if computed is None else "dequantised" if dequantised else "unquantised",
            "dtype": type_name(saved),
            "rows": f"{len(rows)} {kind} rows",
            "computed_in": type_name(loaded),
            "largest_logit": float(expected.abs().max()),
            "difference": float((expected - written).abs().max()),
            "exact_difference": exact,
        }
        files = {str(path.relative_to(folder)): seal(path) for path in folder.rglob("*") if path.is_file()}
        write_json(
            folder / "manifest.json",
            {"files": files, "merged": answer, "adapter": read_json(run.final / "manifest.json")},
        )
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


def _rows(run: RunDirectory) -> tuple[list[torch.Tensor], str]:
    """Some rows as token ids [1, length], and which they are: made up where the prepared data is gone."""
    data = read_json(run.data) or {}
    try:
        prepared = open_prepared(data["eval"] or data["train"])
    except (DataError, KeyError):
        return [torch.arange(TOKENS).unsqueeze(0)], "made-up"
    samples = [prepared.sample(index)[0][:TOKENS] for index in range(min(ROWS, len(prepared)))]
    return [torch.from_numpy(ids).unsqueeze(0) for ids in samples], "evaluation" if data["eval"] else "training"


@torch.no_grad()
def _logits(model: Any, rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([model(ids).logits[0].float() for ids in rows])


def _agree(expected: torch.Tensor, found: torch.Tensor, *, of: str, dtype: torch.dtype) -> float:
    """The largest difference. Raises WorkerFailedError: it is more than rounding in `dtype` makes of the largest."""
    apart, largest = float((expected - found).abs().max()), float(expected.abs().max())
    if apart <= (1e-5 if dtype == torch.float32 else 0.1) * max(1.0, largest):  # not so for NaN
        return apart
    raise WorkerFailedError(
        f"logits of the merged model differ by up to {apart:.1e} from those of {of}, of which the largest is "
        f"{largest:.1f}; nothing was kept. Please report this with the run's resolved.yaml"
    )


if __name__ == "__main__":
    run_program(merge)
