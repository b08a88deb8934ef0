"""Gathers a trained model or adapter on rank 0; writes Hugging Face's format, tensor by tensor."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from safetensors.torch import _TYPES
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.placement_types import _StridedShard

from shardwise.catalog.hub import tokenizer_files
from shardwise.methods.lora import saved_key
from shardwise.models.keys import Keys, StoredSpan
from shardwise.models.nf4 import quantisation_of
from shardwise.models.weights import Weights, window
from shardwise.models.wrapper import Beside
from shardwise.parallel.ownership import Ownership
from shardwise.spec.layout.axes import rows_of_parts
from shardwise.spec.run import read_json, write_json
from shardwise.train.guards.checks import gather
from shardwise.train.precision import type_name
from shardwise.train.saving.card import remove_traces
from shardwise.train.saving.older_names import keep_older_names
from shardwise.train.saving.safetensors_writer import Entry, TensorFile

#: Bytes of one weight file at most, as in Transformers.
SHARD_BYTES = 5 * 10**9

WEIGHTS, ADAPTER = "model.safetensors", "adapter_model.safetensors"
INDEX = "model.safetensors.index.json"

#: Files copied beside the tokenizer's: of generation, and of image and sound processing.
OTHER_FILES = ("generation_config.json", "*processor_config.json")

#: How QLoRA quantised the base that an adapter belongs to.
QUANTISATION = "quantization_config.json"
#: The key there that transformers does not have: whether stacked experts were in 4 bits too.
EXPERTS = "quantize_experts"

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What is to be saved. `model`, `adapters`: whose parameters are live, and the PEFT model
    around it, or None; `source`: folder of the model that training began with, None where it was in
    memory; `keys`, `saved_dtype`: names of weights in files, and their dtype there; `kept`: name of
    each saved buffer, on whatever rank, and its dtype in files; `beside`: what a wrapper has beside
    the language model, and is copied; `parameters`, `buffers`: (Hugging Face name, tensor) of this
    rank; `chat_template`: of rows rendered with another than the tokenizer's; `ends`: id and text
    of each special token that most trained answers end in; `quantised_experts`: QLoRA has stacked
    ones in 4 bits, perhaps in another stage; `local_base`: what files call a local folder."""

    model: nn.Module
    adapters: Any
    source: Path | None
    keys: Keys
    saved_dtype: torch.dtype
    kept: Mapping[str, torch.dtype] = field(default_factory=dict[str, torch.dtype])
    beside: Beside | None = None
    parameters: list[tuple[str, nn.Parameter]] = field(default_factory=list[tuple[str, nn.Parameter]])
    buffers: list[tuple[str, Tensor]] = field(default_factory=list[tuple[str, Tensor]])
    chat_template: str | None = None
    ends: tuple[tuple[int, str], ...] = ()
    local_base: str | None = None
    quantised_experts: bool = False

    @property
    def saved(self) -> list[tuple[str, Tensor]]:
        """This rank's tensors that are saved: all, or the trained ones beside a frozen model."""
        if self.adapters is None:
            return [*self.parameters, *self.buffers]
        return [(name, p) for name, p in self.parameters if p.requires_grad]

    def dtype(self, name: str) -> torch.dtype:
        """The dtype of a tensor in files."""
        return self.kept.get(name, self.saved_dtype)

    def key(self, name: str) -> str:
        """The name that a parameter has in the files; of stacked experts, the stack's."""
        return self.keys.saved(name) if self.adapters is None else saved_key(name, self.adapters)

    def spans(
        self, name: str, shape: Shape, *, offsets: Shape | None = None, lengths: Shape | None = None
    ) -> list[StoredSpan]:
        """Where in the files a window of a parameter lies; by itself the whole."""
        offsets, lengths = offsets or (0,) * len(shape), shape if lengths is None else lengths
        if self.adapters is None:
            return self.keys.spans(name, shape=shape, offsets=offsets, lengths=lengths)
        return [StoredSpan(self.key(name), window(offsets, lengths), ())]


class Files:
    """The weight files of a folder, of at most `SHARD_BYTES` each, and their index. Tensors come as
    in `wanted`; what lies beside a language model follows, as it was read."""

    def __init__(self, folder: Path, result: Result, wanted: list[Wanted]) -> None:
        self._folder, self._result, self._copied = folder, result, Copied(result)
        self._shards = _shards(result, wanted, self._copied)
        self._open: TensorFile | None = None
        self._records: dict[str, dict[str, Any]] = {}
        self._rows: dict[str, dict[int, Tensor]] = {}
        self.size = sum(entry.nbytes for entries in self._shards.values() for entry in entries.values())

    def add(self, name: str, whole: Tensor) -> None:
        """Writes the next tensor, which is on the CPU, in the dtype of files."""
        for key, stored, part, rows in self._result.spans(name, tuple(whole.shape)):
            if rows is not None:
                there = self._rows.setdefault(key, {})
                there[stored[0].start] = whole
                if sum(map(len, there.values())) < rows:
                    continue
                whole = torch.cat([there[first] for first in sorted(self._rows.pop(key))])
            self._put(key, whole[part])

    def _put(self, key: str, tensor: Tensor) -> None:
        file, entries = next((file, entries) for file, entries in self._shards.items() if key in entries)
        if self._open is None or self._open.path.name != file:
            self._close()
            self._open = TensorFile(self._folder / file, entries)
        self._open.add(key, tensor)

    def finish(self) -> dict[str, dict[str, Any]]:
        """Copies the rest, closes the last file, writes the index; size and sha256 by file name."""
        for key in self._copied.entries:
            self._put(key, self._copied.read(key))
        self._close()
        if len(self._shards) > 1:
            weight_map = {key: file for file, entries in self._shards.items() for key in entries}
            write_json(self._folder / INDEX, {"metadata": {"total_size": self.size}, "weight_map": weight_map})
        return self._records

    def abandon(self) -> None:
        """Closes an unfinished file."""
        if self._open is not None:
            self._open.abandon()

    def _close(self) -> None:
        if self._open is not None:
            self._records[self._open.path.name] = self._open.close()
            self._open = None


class Copied:
    """What lies beside a wrapper's language model, the largest types first; with adapters none."""

    def __init__(self, result: Result) -> None:
        keys = () if result.beside is None or result.adapters is not None else result.beside.keys
        self.entries: dict[str, Entry] = {}
        if not keys or result.source is None:
            return
        self._weights = Weights(result.source)
        found = {k: Entry(dtype=_TYPES[self._weights.type(k)], shape=self._weights.shape(k)) for k in keys}
        self.entries = dict(sorted(found.items(), key=lambda one: -one[1].dtype.itemsize))

    def read(self, key: str) -> Tensor:
        """The whole of a tensor, a view of its file; of one in fewer bits what it is widened to."""
        dtype, shape = self.entries[key]
        return self._weights.read(key, offsets=(0,) * len(shape), lengths=shape).to(dtype)


def _shards(result: Result, wanted: list[Wanted], copied: Copied) -> dict[str, dict[str, Entry]]:
    """File name -> its tensors, of types by size: what is copied has its own files."""
    groups: list[dict[str, Entry]] = [{}]
    for entries in (_own(result, wanted), copied.entries.items()):
        size = SHARD_BYTES if groups[-1] else 0
        for key, entry in entries:
            size += entry.nbytes
            if result.adapters is None and size > SHARD_BYTES:
                size = entry.nbytes
                groups += [{}] if groups[-1] else []
            groups[-1][key] = entry
    if len(groups) == 1:
        return {WEIGHTS if result.adapters is None else ADAPTER: groups[0]}
    return {f"model-{n + 1:05d}-of-{len(groups):05d}.safetensors": group for n, group in enumerate(groups)}


def _own(result: Result, wanted: list[Wanted]) -> Iterator[tuple[str, Entry]]:
    """Each key once, when the last of what it holds has come."""
    left: dict[str, int] = {}
    for one in wanted:
        for key, stored, _, rows in result.spans(one.name, one.shape):
            count, *rest = shape = tuple(part.stop - part.start for part in stored)
            if rows is not None:
                left[key] = left.get(key, rows) - count
                shape = rows, *rest
            if not left.get(key, 0):
                yield key, Entry(dtype=result.dtype(one.name), shape=shape)


def copy_configuration(result: Result, folder: Path) -> list[str]:
    """Writes configuration, tokenizer and chat template. Returns the new stop tokens."""
    if result.adapters is None:
        config: Any = result.model.config
        config.dtype = type_name(result.saved_dtype)
    else:
        config = result.adapters.peft_config["default"]
        config.inference_mode = True
        beside = () if result.beside is None else result.beside.modules
        if (quantised := quantisation_of(result.model, beside=beside)) is not None:
            # Not in a config.json, beside which transformers would look for whole weights.
            write_json(folder / QUANTISATION, {**quantised, EXPERTS: result.quantised_experts})
    config.save_pretrained(str(folder))
    if result.adapters is None:
        keep_older_names(folder, config, result.source)
    settings: Any = getattr(result.model, "generation_config", None)
    if result.source is not None:
        others = sorted(path for pattern in OTHER_FILES for path in result.source.glob(pattern))
        for path in (*tokenizer_files(result.source), *others):
            if path.is_file():
                target = folder / path.relative_to(result.source)
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, target)
    elif settings is not None and result.adapters is None:  # of a model that was in memory
        settings.save_pretrained(folder)
    if result.chat_template is not None:
        (folder / "chat_template.jinja").write_text(result.chat_template, encoding="utf-8")
    remove_traces(folder)
    return _stop_at_ends(result, folder)


def _stop_at_ends(result: Result, folder: Path) -> list[str]:
    """Adds to generation_config.json the tokens that answers were trained to end in, as the lists
    of instruct models have them; the texts of those that were not there."""
    path, config = folder / "generation_config.json", cast(Any, result.model).config
    said = read_json(path)
    if said is None:
        said = {key: getattr(config, key, None) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    stops = listed(said.get("eos_token_id"))
    new = [(token, text) for token, text in result.ends if token not in stops]
    if new:
        said.pop("_from_model_config", None)  # with it, transformers would take those of config.json
        write_json(path, {**said, "eos_token_id": [*stops, *(token for token, _ in new)]})
    return [text for _, text in new]


def listed(said: Any) -> list[int]:
    """The ids of an `eos_token_id`: one, several or none."""
    return [] if said is None else list(said) if isinstance(said, list) else [said]  # pyright: ignore


def learned_ends(prepared: dict[str, Any]) -> tuple[tuple[int, str], ...]:
    """The special tokens in which half of all trained answers end, or more, by data.json."""
    said = prepared.get("ends") or {}
    tokens = said.get("tokens", [])
    total = sum(one["count"] for one in tokens) + said.get("unmarked", 0)
    return tuple((one["id"], one["text"]) for one in tokens if 2 * one["count"] >= total)


class Wanted(NamedTuple):
    """A whole tensor's Hugging Face name and global shape, and the rank that sends it to rank 0."""

    name: str
    shape: tuple[int, ...]
    source: int


def wanted_tensors(result: Result, *, ownership: Ownership) -> list[Wanted]:
    """Every tensor of the whole model once, in the order of files; alike on all ranks."""
    world = ownership.world
    mine = {name: tuple(p.shape) for name, p in result.saved if name not in ownership.copies}
    found: list[Wanted] = []
    for rank, stage in enumerate(gather(world, mine)):
        if rank % world.layout.ranks_per_stage == 0:  # one rank tells for its stage
            found += [Wanted(name, shape, rank) for name, shape in stage.items()]
    return sorted(found, key=lambda one: -result.dtype(one.name).itemsize)


def whole_tensors(wanted: list[Wanted], result: Result, *, ownership: Ownership) -> Iterator[tuple[str, Tensor | None]]:
    """Gathers tensors one by one, on all ranks: (name, the whole tensor on the CPU), or None on
    ranks other than 0. One that is on rank 0's CPU is yielded as it is, for the writer to cast."""
    world, mine = ownership.world, dict(result.saved)
    here = world.layout.coordinates(world.rank)
    for one in wanted:
        dtype = result.dtype(one.name)
        whole = gathered(mine[one.name]) if here.pp == world.layout.coordinates(one.source).pp else None
        if whole is not None and (whole.is_cuda or one.source):
            whole = whole.to(dtype)
        if one.source and whole is not None and world.rank == one.source:
            dist.send(whole.cpu().contiguous(), 0, group=world.control)
        if one.source and world.is_first:
            whole = torch.empty(one.shape, dtype=dtype)
            dist.recv(whole, one.source, group=world.control)
        yield one.name, whole.cpu() if whole is not None and world.is_first else None


@torch.no_grad()
def gathered(parameter: Tensor) -> Tensor:
    """The whole of a plain or sharded parameter; a collective of a stage's ranks."""
    if not isinstance(parameter, DTensor):
        return parameter.detach()
    # Shards that lie in the host's memory come together on the mesh's device, one tensor at a time.
    shards = cast(DTensor, parameter.detach().to(parameter.device_mesh.device_type))
    # What FSDP2 sharded is a slice of tensor parallelism: it becomes whole before the slices do.
    slices = [Replicate() if isinstance(placed, _StridedShard) else placed for placed in shards.placements]
    whole, parts = shards.redistribute(placements=slices).full_tensor(), getattr(parameter, "parts_of_rows", None)
    if parts is None:
        return whole
    spans = [*rows_of_parts(parts, 0, len(whole))]
    stretches = zip(spans, whole.split([count for _, count in spans]), strict=True)
    return torch.cat([rows for _, rows in sorted(stretches, key=lambda one: one[0])])
