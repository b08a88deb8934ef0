"""`final/`: the trained model or adapter as the ecosystem loads it, verified before it gets its name.

Tensors are gathered one at a time and written as soon as a file's worth is together, so that no rank holds the whole.
A clean process then loads the folder with from_pretrained and compares logits with those of the live model; only
after that is the folder renamed to `final/`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.tensor import DTensor

from shardwise.parallel.apply import Spread
from shardwise.parallel.mesh import World
from shardwise.spec.run import RunDirectory, write_json
from shardwise.train.durable import SaveError, seal, staged, together
from shardwise.train.journal import Journal
from shardwise.train.precision import Types, type_name

#: Bytes of one weight file at most, as in Transformers.
SHARD_BYTES = 5 * 10**9
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What is to be saved.

    Attributes:
        model: the Hugging Face model whose parameters are live.
        adapters: the PEFT model around it, or None for full fine-tuning.
        source: folder of the model that training began with.
        source_dtype: type its weights are stored in there.
        parameters: (Hugging Face name, parameter).
        chat_template: what rows were rendered with, where it is not the tokenizer's own; saved beside the weights,
            so that the model is asked as it was trained.
    """

    model: nn.Module
    adapters: Any
    source: Path
    source_dtype: torch.dtype
    parameters: list[tuple[str, nn.Parameter]]
    chat_template: str | None = None


def save_final(
    result: Result,
    *,
    run: RunDirectory,
    world: World,
    journal: Journal,
    spread: Spread,
    types: Types,
    probe: torch.Tensor,
) -> None:
    """Writes, verifies and commits `final/`.

    Args:
        probe: token ids [1, length] on which live and reloaded logits are compared.

    Raises:
        SaveError: writing failed, or the reloaded folder is not the live model.
    """
    journal.enter("saving")
    logits = live_logits(spread, probe)
    with staged(world, run.final) as folder:
        write = _write_adapter if result.adapters is not None else _write_model
        files = write(result, folder=folder, world=world)
        if world.is_first:
            _copy_tokenizer(result, folder)
        manifest = together(
            world,
            lambda: {name: seal(folder / name) for name in files} if world.is_first else {},
            what="syncing final/",
        )
        if world.is_first:
            write_json(folder / "manifest.json", {"files": manifest})
        journal.enter("verifying")
        together(
            world,
            lambda: _verify(folder, result=result, probe=probe, logits=logits, types=types) if world.is_first else None,
            what="verifying final/",
        )


@torch.no_grad()
def live_logits(spread: Spread, probe: torch.Tensor) -> torch.Tensor:
    """Logits of the live model in evaluation mode, float32 on the CPU; every rank takes part."""
    spread.module.eval()
    device = next(spread.module.parameters()).device
    ids = probe.to(device)
    positions = torch.arange(ids.shape[1], device=device).unsqueeze(0)
    logits = spread.module(input_ids=ids, position_ids=positions)
    spread.module.train()
    return logits.float().cpu()


def _whole_tensors(
    parameters: Iterable[tuple[str, nn.Parameter]], *, world: World
) -> Iterator[tuple[str, torch.Tensor]]:
    """Gathers one parameter after the other; only rank 0 keeps what it gets."""
    for name, parameter in parameters:
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        if world.is_first:
            yield name, whole.detach().cpu()


def _write_model(result: Result, *, folder: Path, world: World) -> list[str]:
    """Weight files of at most `SHARD_BYTES`, their index, and config.json.

    Returns:
        Names of the files written, on rank 0.
    """
    batches: list[dict[str, str]] = []
    held: dict[str, torch.Tensor] = {}
    size = 0
    for name, whole in _whole_tensors(result.parameters, world=world):
        tensor = whole.to(result.source_dtype).clone()
        if held and size + tensor.nbytes > SHARD_BYTES:
            batches.append(_flush(held, folder, len(batches)))
            held, size = {}, 0
        held[name] = tensor
        size += tensor.nbytes
    if not world.is_first:
        return []
    batches.append(_flush(held, folder, len(batches)))
    files = _name_files(batches, folder)
    config: Any = result.model.config
    config.dtype = type_name(result.source_dtype)
    config.save_pretrained(folder)
    return [*files, "config.json"]


def _flush(tensors: dict[str, torch.Tensor], folder: Path, index: int) -> dict[str, str]:
    file = f"model-{index + 1:05d}.safetensors"
    save_file(tensors, folder / file, metadata={"format": "pt"})
    return dict.fromkeys(tensors, file)


def _name_files(batches: list[dict[str, str]], folder: Path) -> list[str]:
    """One file is called model.safetensors; several get Transformers' numbering and an index."""
    count = len(batches)
    if count == 1:
        (folder / "model-00001.safetensors").rename(folder / "model.safetensors")
        return ["model.safetensors"]
    weight_map: dict[str, str] = {}
    for index, batch in enumerate(batches):
        final = f"model-{index + 1:05d}-of-{count:05d}.safetensors"
        (folder / f"model-{index + 1:05d}.safetensors").rename(folder / final)
        weight_map.update(dict.fromkeys(batch, final))
    total = sum((folder / file).stat().st_size for file in set(weight_map.values()))
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})
    return [*sorted(set(weight_map.values())), "model.safetensors.index.json"]


def _write_adapter(result: Result, *, folder: Path, world: World) -> list[str]:
    """adapter_model.safetensors and adapter_config.json, with PEFT's own names."""
    from peft import get_peft_model_state_dict

    trained = [(f"base_model.model.{name}", p) for name, p in result.parameters if p.requires_grad]
    whole = dict(_whole_tensors(trained, world=world))
    if not world.is_first:
        return []
    named = get_peft_model_state_dict(result.adapters, state_dict=whole, save_embedding_layers=False)
    save_file({name: t.clone() for name, t in named.items()}, folder / "adapter_model.safetensors", {"format": "pt"})
    config = result.adapters.peft_config["default"]
    config.inference_mode = True
    config.save_pretrained(str(folder))
    return ["adapter_model.safetensors", "adapter_config.json"]


def _copy_tokenizer(result: Result, folder: Path) -> None:
    for name in _TOKENIZER_FILES:
        if (result.source / name).is_file():
            shutil.copyfile(result.source / name, folder / name)
    if result.chat_template is not None:
        (folder / "chat_template.jinja").write_text(result.chat_template, encoding="utf-8")


def _verify(folder: Path, *, result: Result, probe: torch.Tensor, logits: torch.Tensor, types: Types) -> None:
    """Runs train/check.py on the folder in a clean process.

    Raises:
        ValueError: with its sentence, if the folder does not hold the live model.
    """
    request = folder / ".probe.safetensors"
    save_file({"probe": probe, "logits": logits.contiguous()}, request)
    command = [sys.executable, "-m", "shardwise.train.check", str(folder), str(request)]
    command += ["--compute-dtype", type_name(types.compute), "--base", str(result.source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    request.unlink()
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise ValueError(lines[-1] if lines else f"the check ended with status {done.returncode}")
    json.loads(done.stdout.splitlines()[-1])


__all__ = ["Result", "SaveError", "live_logits", "save_final"]
