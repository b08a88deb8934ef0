"""Merges the adapter of a run into its base model, and compares their logits."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from shardwise.catalog.devices import available_memory, free_disk
from shardwise.catalog.stated import published_as
from shardwise.data.store import open_prepared
from shardwise.errors import DataError, InputError, WorkerFailedError
from shardwise.models.load import build_on_meta, load_wide, read_config
from shardwise.models.nf4 import quantised_and_back, quantised_layers
from shardwise.models.nf4_experts import experts_and_back
from shardwise.models.wrapper import auto_class
from shardwise.spec.job.file import read_job
from shardwise.spec.job.rope import RopeScaling
from shardwise.spec.result import ADAPTER_CONFIG, BASE_KEYS, CARD, MANIFEST, naming_a_folder
from shardwise.spec.run import RunDirectory, read_json
from shardwise.train.precision import type_name
from shardwise.train.result import base_of, experts_in_4_bits
from shardwise.train.saving.atomic import commit, removed_on_error
from shardwise.train.saving.card import model_card, remove_traces
from shardwise.train.saving.export import QUANTISATION
from shardwise.train.saving.final import write_manifest
from shardwise.train.saving.older_names import keep_older_names
from shardwise.units import format_bytes

#: Rows that are compared, and tokens of each.
ROWS, TOKENS = 8, 128


def merge(run_dir: str, target: str, dtype: str | None, dequantised: bool, base_model: str | None = None) -> None:
    """Writes the merged model, compares it, and prints what was done as JSON. One model is in
    memory at a time: in float32, or in its own type where memory is too small. Raises ModelError:
    the base is not what was trained on; InputError: the disk is too small; WorkerFailedError: the
    logits differ, or it could not be written."""
    run, end = RunDirectory(Path(run_dir)), Path(target)
    base, quantisation = base_of(run, base_model)
    computed = None if quantisation is None else quantisation.bnb_4bit_compute_dtype
    stored, rows, kind = read_config(base).dtype or torch.float32, *_rows(run)
    saved = getattr(torch, dtype) if dtype else stored
    elements = sum(p.numel() for p in build_on_meta(read_config(base), attn_implementation="eager").parameters())
    if (needed := elements * saved.itemsize) > (free := free_disk(end)):
        raise InputError(
            f"{end}: the merged model takes {format_bytes(needed)}, and its disk has {format_bytes(free)} left; free "
            "some, name a folder on another disk by --output, or a smaller type by --dtype"
        )
    loaded = torch.float32 if 4 * elements < 0.9 * available_memory() else stored
    onto = computed if dequantised else None
    trained = None if onto is computed else _logits(_adapted(base, run, loaded, quantised=computed), rows)
    model = _adapted(base, run, loaded, quantised=onto)
    together = _logits(model, rows)
    model = model.merge_and_unload()
    exact = _apart(together, _logits(model, rows))
    again = partial(_in_float64, base, run, rows, onto=onto, elements=elements)
    double = _agree(exact, together, dtype=loaded, again=again)
    rounded = _logits(_cast(_cast(model, saved), loaded), rows)
    expected = together if trained is None else trained
    answer = {
        "onto": "base" if computed is None else "dequantised" if dequantised else "unquantised",
        "dtype": type_name(saved),
        "rows": f"{len(rows)} {kind} rows",
        "computed_in": type_name(loaded),
        "largest_logit": float(expected.abs().max()),
        "exact_difference": exact,
        "float64_difference": double,
    }
    before = ((read_json(end / MANIFEST) or {}).get("merged") or {}).get("dtype")
    folder = end.with_name(f".{end.name}.unfinished")
    shutil.rmtree(folder, ignore_errors=True)  # of a merge that was killed
    try:
        with removed_on_error(folder):
            _save(_cast(model, saved), run, folder, base)
            del model
            written = _logits(_load(folder, loaded), rows)
            _agree(_apart(rounded, written), rounded, dtype=loaded, of="what was to be written")
            answer["difference"] = _apart(expected, written)
            said = {"merged": answer, **_described(run, folder, dtype=answer["dtype"])}
            kept = write_manifest(folder, end, records={}, said=said)
            commit(folder, end)
    except (OSError, SafetensorError) as error:  # as a library says that a folder cannot be written
        raise WorkerFailedError(f"{end} cannot be written: {error}; what was there before is as it was") from None
    places = {"folder": target, "base": str(base.resolve())}
    print(json.dumps({**places, **answer, "dtype_before": before, "kept": kept, "stops": said["stops"]}))


def _described(run: RunDirectory, folder: Path, *, dtype: str) -> dict[str, Any]:
    """Writes the card of a merged model; what its manifest says of the adapter and its base."""
    name = str((read_json(run.final / ADAPTER_CONFIG) or {}).get(BASE_KEYS[0]))
    is_local = ADAPTER_CONFIG in naming_a_folder(run.final)
    loader = auto_class(read_config(folder)).__name__
    card = model_card(run, base=name, is_local=is_local, merged=dtype, loader=loader)
    (folder / CARD).write_text(card, encoding="utf-8")
    adapter = read_json(run.final / MANIFEST) or {}
    return {"adapter": adapter, "stops": adapter.get("stops", []), **({"base": Path(name).name} if is_local else {})}


def _adapted(base: Path, run: RunDirectory, dtype: torch.dtype, *, quantised: torch.dtype | None) -> Any:
    """The base with a run's adapter; `quantised`: its matrices as training dequantised them."""
    from peft import PeftModel

    model = _load(base, dtype, rope=read_job(run.resolved).rope_scaling)
    if quantised is not None:
        for layer in quantised_layers(model).values():
            layer.weight.data = quantised_and_back(layer.weight.data, dtype=quantised).to(dtype)
        if experts_in_4_bits(run):
            experts_and_back(model, dtype=quantised)
    model: Any = PeftModel.from_pretrained(model, str(run.final)).eval()
    head = model.get_base_model().get_output_embeddings()
    if hasattr(head, "base_layer"):  # what is merged into a tied head is not for the embedding
        head.base_layer.weight = nn.Parameter(head.base_layer.weight.detach().clone(), requires_grad=False)
    return model


def _load(folder: Path, dtype: torch.dtype, *, rope: RopeScaling | None = None) -> Any:
    if published_as(read_json(folder / "config.json") or {}) is not None:
        return load_wide(folder, dtype=dtype, rope=rope)
    config = read_config(folder, rope=rope)
    options = {} if rope is None else {"config": config}
    return auto_class(config).from_pretrained(folder, dtype=dtype, **options).eval()


def _cast(model: Any, dtype: torch.dtype) -> Any:
    """Casts weights in place; `Module.to` would round rotary frequencies too, which no file has."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def _save(model: Any, run: RunDirectory, folder: Path, base: Path) -> None:
    """Model, tokenizer and chat template. Tied weights of which one was trained are untied."""
    model.config.tie_word_embeddings = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    model.generation_config = type(model.generation_config)()  # the base's own is copied: it may be one that none saves
    model.save_pretrained(folder)
    keep_older_names(folder, model.config, base)
    (folder / "generation_config.json").unlink(missing_ok=True)  # without one, config.json says where to stop
    for path in run.final.iterdir():
        if not path.name.startswith(("adapter", "config", QUANTISATION, MANIFEST, CARD)):
            (shutil.copytree if path.is_dir() else shutil.copyfile)(path, folder / path.name)
    remove_traces(folder)
    for path in folder.glob("*.safetensors"):  # safetensors makes files that their owner alone reads
        path.chmod((folder / "config.json").stat().st_mode)


def _rows(run: RunDirectory) -> tuple[list[torch.Tensor], str]:
    """Some rows as token ids [1, length], and which; made up where the prepared data is gone."""
    data = read_json(run.data) or {}
    try:
        prepared = open_prepared(data["eval"] or data["train"])
    except (DataError, KeyError):
        return [torch.arange(TOKENS).unsqueeze(0)], "made-up"
    samples = (prepared.sample(index)[0][:TOKENS] for index in range(min(ROWS, len(prepared))))
    return [torch.from_numpy(ids).unsqueeze(0) for ids in samples], "evaluation" if data["eval"] else "training"


@torch.no_grad()
def _logits(model: Any, rows: list[torch.Tensor]) -> torch.Tensor:
    logits = torch.cat([model(ids, use_cache=False).logits[0] for ids in rows])
    return logits if logits.dtype == torch.float64 else logits.float()


def _apart(expected: torch.Tensor, found: torch.Tensor) -> float:
    return float((expected - found).abs().max())


def _in_float64(
    base: Path, run: RunDirectory, rows: list[torch.Tensor], *, onto: torch.dtype | None, elements: int
) -> float | None:
    """How far base and adapter are from the merged, in float64; None if memory is too small."""
    if 8 * elements > 0.9 * available_memory():
        return None
    model = _cast(_adapted(base, run, torch.float64, quantised=onto), torch.float64)
    model.get_base_model().set_experts_implementation("eager")  # grouped products take no float64
    together = _logits(model, rows)
    return _apart(together, _logits(model.merge_and_unload(), rows))


def _agree(
    apart: float,
    expected: torch.Tensor,
    *,
    dtype: torch.dtype,
    of: str = "base and adapter",
    again: Callable[[], float | None] | None = None,
) -> float | None:
    """Whether logits are `apart` by at most rounding in `dtype` of the largest. Where float32
    rounds more, `again` is the float64 figure, or None. Raises WorkerFailedError."""
    largest, in_float32 = max(1.0, float(expected.abs().max())), dtype == torch.float32
    if apart <= (1e-5 if in_float32 else 0.1) * largest:  # not so for NaN
        return None
    double = again() if again is not None and in_float32 else None
    if double is not None and double <= 1e-5 * largest:
        return double
    if again is not None and in_float32 and double is None and apart <= 1e-3 * largest:  # memory is too small for it
        return None
    wide = "" if double is None else f" (in float64 by {double:.1e})"
    raise WorkerFailedError(
        f"logits of the merged model differ by up to {apart:.1e}{wide} from those of {of}, of which the largest is "
        f"{float(expected.abs().max()):.1f}; nothing was kept. Please report this with the run's resolved.yaml"
    )
