"""Files of a trained model or adapter, in the ecosystem's form: tensors come one at a time, names are theirs.

Only rank 0 writes; it never holds more than one file's worth.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import nn

from shardwise.catalog.files import tokenizer_files
from shardwise.methods.lora import saved_name
from shardwise.models.keys import Keys
from shardwise.spec.run import write_json
from shardwise.train.precision import type_name

#: Bytes of one weight file at most, as in Transformers.
SHARD_BYTES = 5 * 10**9


@dataclass(frozen=True, kw_only=True)
class Result:
    """What is to be saved.

    Attributes:
        model: the Hugging Face model whose parameters are live.
        adapters: the PEFT model around it, or None for full fine-tuning.
        source: folder of the model that training began with.
        keys: what its weights are called in files.
        saved_dtype: type in which it is saved.
        parameters: (Hugging Face name, parameter).
        chat_template: what rows were rendered with, where it is not the tokenizer's own; saved beside the weights,
            so that the model is asked as it was trained.
    """

    model: nn.Module
    adapters: Any
    source: Path
    keys: Keys
    saved_dtype: torch.dtype
    parameters: list[tuple[str, nn.Parameter]]
    chat_template: str | None = None


class Files(Protocol):
    """Takes whole tensors and leaves a folder that others can load."""

    def add(self, name: str, whole: torch.Tensor) -> None:
        """Takes one tensor, on the CPU."""
        ...

    def finish(self) -> None:
        """Writes what is left, and the configuration."""
        ...


class ModelFiles:
    """Weight files of at most `SHARD_BYTES`, their index, and config.json."""

    def __init__(self, result: Result, folder: Path) -> None:
        self._result = result
        self._folder = folder
        self._held: dict[str, torch.Tensor] = {}
        self._written: list[list[str]] = []

    def add(self, name: str, whole: torch.Tensor) -> None:
        """Holds a tensor until a file is full."""
        tensor = whole.to(self._result.saved_dtype).clone()
        if self._held and sum(t.nbytes for t in self._held.values()) + tensor.nbytes > SHARD_BYTES:
            self._flush()
        self._held[self._result.keys.saved(name)] = tensor

    def finish(self) -> None:
        """Writes the last file, gives all of them Transformers' names, and writes config.json."""
        self._flush()
        self._name_files()
        config: Any = self._result.model.config
        config.dtype = type_name(self._result.saved_dtype)
        config.save_pretrained(self._folder)

    def _flush(self) -> None:
        save_file(self._held, self._provisional(len(self._written)), metadata={"format": "pt"})
        self._written.append(list(self._held))
        self._held = {}

    def _provisional(self, index: int) -> Path:
        return self._folder / f"part-{index}.safetensors"

    def _name_files(self) -> None:
        count = len(self._written)
        if count == 1:
            self._provisional(0).rename(self._folder / "model.safetensors")
            return
        weight_map: dict[str, str] = {}
        for index, names in enumerate(self._written):
            final = f"model-{index + 1:05d}-of-{count:05d}.safetensors"
            self._provisional(index).rename(self._folder / final)
            weight_map.update(dict.fromkeys(names, final))
        total = sum((self._folder / file).stat().st_size for file in set(weight_map.values()))
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        write_json(self._folder / "model.safetensors.index.json", index)


class AdapterFiles:
    """adapter_model.safetensors and adapter_config.json, with PEFT's own names."""

    def __init__(self, result: Result, folder: Path) -> None:
        self._result = result
        self._folder = folder
        self._held: dict[str, torch.Tensor] = {}

    def add(self, name: str, whole: torch.Tensor) -> None:
        """Holds an adapter's tensor; together they are small."""
        self._held[saved_name(name)] = whole.to(self._result.saved_dtype)

    def finish(self) -> None:
        """Writes both files."""
        tensors = {name: tensor.clone() for name, tensor in self._held.items()}
        save_file(tensors, self._folder / "adapter_model.safetensors", {"format": "pt"})
        config = self._result.adapters.peft_config["default"]
        config.inference_mode = True
        config.save_pretrained(str(self._folder))


def files_of(result: Result, folder: Path) -> Files:
    """The writer for what was trained."""
    return ModelFiles(result, folder) if result.adapters is None else AdapterFiles(result, folder)


def copy_tokenizer(result: Result, folder: Path) -> None:
    """The source's tokenizer, and the chat template that rows were rendered with."""
    for path in (*tokenizer_files(result.source), result.source / "generation_config.json"):
        if path.is_file():
            target = folder / path.relative_to(result.source)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)
    if result.chat_template is not None:
        (folder / "chat_template.jinja").write_text(result.chat_template, encoding="utf-8")
