"""From a model folder to live weights: the architecture on the meta device first, then each rank's
own slices.

No rank ever holds more than what its layout says: parameters are made on the meta device, sharded
there, and only then filled, each from the part of the safetensors file that this rank keeps.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from shardwise.catalog.models import hub_id, rotation
from shardwise.catalog.stated import published_as
from shardwise.errors import ModelError, UnsupportedError, said
from shardwise.models.buffers import fill_buffers, names_in_files, saved_buffers
from shardwise.models.keys import Keys, without_wrappers
from shardwise.models.known_ahead import replaced
from shardwise.models.nf4 import NF4Linear
from shardwise.models.nf4_experts import ELEMENTS, SCALES, NF4Stack, stack_named
from shardwise.models.weights import Weights, bounds_of, check_finite, check_names, check_tied, window
from shardwise.models.wrapper import auto_class, text_config
from shardwise.spec.job.rope import RopeScaling
from shardwise.spec.layout.axes import rows_of_parts, rows_of_shard

#: Base name -> base names of everything that starts as the same tensor.
Kin = dict[str, list[str]]

#: Elements of a tensor that a constructor does not allocate: more than any table of buffers has.
_LARGE = 2**28

#: What `materialise` is.
Materialise = Callable[..., None]


def find_model_folder(name: str, *, revision: str | None = None) -> Path:
    """A model's folder, local or the hub's, downloaded once. Raises ModelError: there is none."""
    local = Path(name)
    if local.exists():
        return local.parent if local.is_file() else local
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
    try:
        return Path(snapshot_download(hub_id(name), revision=revision, allow_patterns=patterns))
    except Exception as error:  # noqa: BLE001 - the hub's library lets errors of whatever it asks with through
        raise ModelError.at(name, f"is neither a folder nor a model the hub gives: {said(error)}") from None


def read_config(folder: Path, *, rope: RopeScaling | None = None) -> Any:
    """The transformers configuration of a folder, as of a model whose weights are floats; its code
    is never run. `rope`: how a job stretches rotary positions. Raises ModelError: transformers
    cannot read it; UnsupportedError: it has no positions that are stretched so."""
    from transformers import AutoConfig

    try:
        config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - each configuration class has checks of its own
        raise ModelError.at(folder / "config.json", f"transformers cannot read it: {said(error)}") from None
    for one in (config, text_config(config)):
        if published_as(vars(one)) is not None:
            del one.quantization_config
            config.dtype = config.dtype or torch.bfloat16
    if rope is not None:
        _stretch(text_config(config), rope)
    return config


def _stretch(config: Any, rope: RopeScaling) -> None:
    """Gives a configuration a job's rotation. Raises UnsupportedError: transformers refuses it."""
    if getattr(config, "rope_parameters", None) is None:
        raise UnsupportedError(f"rope_scaling: {config.model_type} has no rotary positions to stretch; remove it")
    made = rotation(config.rope_parameters, rope, positions=config.max_position_embeddings)
    if hasattr(config, "original_max_position_embeddings") and "original_max_position_embeddings" in made:
        config.original_max_position_embeddings = made["original_max_position_embeddings"]
    config.rope_parameters = made
    try:
        config.standardize_rope_params()
        config.validate_rope()
    except (KeyError, ValueError, TypeError) as error:
        raise UnsupportedError(f"rope_scaling: transformers refuses it: {said(error)}") from None


def build_on_meta(config: Any, *, attn_implementation: str) -> nn.Module:
    """The whole architecture with parameters on the meta device and buffers computed on the CPU;
    of a model of more than text the language model alone has this attention, which others may not
    know. Raises UnsupportedError: transformers has no such model, or not with this attention."""
    from transformers.initialization import no_init_weights

    if attn_implementation == "varlen":
        from shardwise.models.varlen import register

        register()
    inner = text_config(config)
    of_part = next((name for name in config.sub_configs if getattr(config, name, None) is inner), None)
    attention = {of_part: attn_implementation} if of_part else attn_implementation
    try:
        # Rotary frequencies are computed in constructors and stand in no file: buffers stay real.
        on_meta = (nn.Module, "register_parameter", _register_on_meta), (torch, "empty", partial(_empty, torch.empty))
        with replaced(*on_meta), no_init_weights():
            model: nn.Module = auto_class(config).from_config(
                config, attn_implementation=attention, dtype=torch.float32, trust_remote_code=False
            )
    except Exception as error:  # noqa: BLE001 - each constructor has checks of its own, and those of PyTorch
        raise UnsupportedError(f"{config.model_type} cannot be built here: {said(error)}") from None
    if hasattr(config, "rescale_every"):  # RWKV halves weights in evaluation, which training without dropout is
        for module in model.modules():
            if hasattr(module, "_rescale_layers"):
                vars(module)["_rescale_layers"] = lambda: None
    tie: Callable[[], None] = model.tie_weights  # pyright: ignore[reportAssignmentType]
    tie()
    return model


_register = nn.Module.register_parameter


def _empty(empty: Callable[..., torch.Tensor], *size: Any, **words: Any) -> torch.Tensor:
    """Of stacked experts, which memory need not hold for a moment either, on the meta device."""
    made = empty(*size, **{**words, "device": "meta"})
    return made if made.numel() > _LARGE else empty(*size, **words)


def _register_on_meta(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
    if param is not None and param.device.type != "meta":
        param = nn.Parameter(param.to("meta"), requires_grad=param.requires_grad)
    _register(module, name, param)


@dataclass(kw_only=True)
class _Place:
    """One parameter and every (module, attribute) that holds it; tied weights have several."""

    parameter: nn.Parameter
    names: list[str] = field(default_factory=list[str])
    holders: list[tuple[nn.Module, str]] = field(default_factory=list[tuple[nn.Module, str]])

    @property
    def layer(self) -> NF4Linear | None:
        module, attribute = self.holders[0]
        return module if isinstance(module, NF4Linear) and attribute == "weight" else None

    @property
    def stack(self) -> NF4Stack | None:
        return stack_named(*self.holders[0])

    @property
    def shape(self) -> tuple[int, ...]:
        if self.stack is not None:
            return (len(self.parameter), *self.stack.shape)
        return (self.layer.out_features, self.layer.in_features) if self.layer else tuple(self.parameter.shape)


def _places(model: nn.Module) -> list[_Place]:
    found: dict[int, _Place] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for attribute, parameter in module._parameters.items():
            of_linear = isinstance(module, NF4Linear) and attribute == "scales"
            if parameter is None or of_linear or attribute.endswith(SCALES):
                continue  # scales are made with their weight
            place = found.setdefault(id(parameter), _Place(parameter=parameter))
            place.names.append(f"{prefix}.{attribute}" if prefix else attribute)
            place.holders.append((module, attribute))
    return list(found.values())


def materialise(
    model: nn.Module,
    *,
    weights: Weights,
    device: torch.device,
    buffer_device: torch.device | None = None,
    initialise: Callable[[str, tuple[int, ...]], Callable[[], torch.Tensor] | None],
    elsewhere: Iterable[str] = (),
    kin: Kin | None = None,
) -> None:
    """Gives every meta parameter its values, each rank only its own slices, of the folder `weights`
    (called as the model calls them, `Keys`). `initialise`: (parameter name, global shape) -> what
    makes the whole initial value of one that the folder lacks (adapters), one at a time, or None
    where it must have it; `elsewhere`: parameters and buffers of other stages or nobody, which may
    stand in the folder; `kin`: of the whole model, where this is a stage. Raises ModelError: a
    weight is lacking, too many, of another shape, not finite, or unlike what it is tied to."""
    places = _places(model)
    fresh = {id(p): initialise(p.names[0], tuple(p.parameter.shape)) for p in places}
    kin, prefix = kin or kin_of(model), f"{getattr(model, 'base_model_prefix', '')}."
    stored = {id(p): _stored_name(p, kin, weights, prefix) for p in places if fresh[id(p)] is None}
    shapes = {stored[id(p)]: p.shape for p in places if id(p) in stored}
    aliases = {name for p in places for name in map(without_wrappers, p.names)}
    others = {without_wrappers(name) for name in elsewhere}
    others |= {name.removeprefix(prefix) for name in others}
    # Tensors that transformers skips too: buffers that others once saved, and layers behind the
    # last that foretell tokens further on; its models' patterns name those of published ones.
    config: Any = text_config(getattr(model, "config", None))
    last, more = (getattr(config, key, None) or 0 for key in ("num_hidden_layers", "num_nextn_predict_layers"))
    patterns = [rf"\blayers\.{index}\." for index in range(last, last + more)]
    patterns += getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    ignored = {name for name in weights.names if any(re.search(pattern, name) for pattern in patterns)}
    ignored |= aliases | others | names_in_files(saved_buffers(model), model)
    check_names(weights, expected=shapes, ignored=ignored)
    check_tied(weights, kin=kin.values())
    bounds: dict[str, torch.Tensor] = {}
    # The largest first: what is read of one is in memory with what the rank keeps of those before.
    for place in sorted(places, key=lambda place: place.parameter.numel(), reverse=True):
        make, layer, stack = fresh[id(place)], place.layer, place.stack
        if layer is not None:
            bounds[stored[id(place)]] = _quantise(place, layer, weights, stored[id(place)], device=device)
            continue
        if stack is not None:
            if (found := _quantise_stack(place, stack, weights, stored[id(place)], device=device)) is not None:
                bounds[stored[id(place)]] = found
            continue
        read = _slicer(make) if make is not None else partial(weights.read, stored[id(place)])
        found = _fill(place, device=device, read=read)
        if make is None and found is not None:
            bounds[stored[id(place)]] = found
    _move_buffers(model, buffer_device or device)
    check_finite(weights, bounds | {name: ends.to(device) for name, ends in fill_buffers(model, weights).items()})


def load_wide(folder: Path, *, dtype: torch.dtype, rope: RopeScaling | None = None) -> nn.Module:
    """A folder's whole model in host memory, weights in fewer bits widened for training. Raises
    ModelError: the folder cannot be used; UnsupportedError: transformers has no such model."""
    model, weights = build_on_meta(read_config(folder, rope=rope), attn_implementation="eager"), Weights(folder)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    weights.rename(Keys(model, weights.names, weights.shape))
    materialise(model, weights=weights, device=torch.device("cpu"), initialise=lambda _name, _shape: None)
    return model.eval()


def fill_from_memory(model: nn.Module, *, value: Callable[[str], torch.Tensor], device: torch.device) -> None:
    """Gives every meta parameter this rank's slices of whole tensors, by parameter name."""
    for place in _places(model):
        _fill(place, device=device, read=_slicer(partial(value, place.names[0])))
    _move_buffers(model, device)


def _move_buffers(model: nn.Module, device: torch.device) -> None:
    for module in model.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)


#: What gives the part of a tensor that begins at `offsets` and is `lengths` long.
Read = Callable[..., torch.Tensor]


def _slicer(make: Callable[[], torch.Tensor]) -> Read:
    return lambda *, offsets, lengths: make()[window(offsets, lengths)]


def _quantise(place: _Place, layer: NF4Linear, weights: Weights, name: str, *, device: torch.device) -> torch.Tensor:
    """Reads a whole matrix, and gives its layer this rank's part, quantised; its `bounds_of`."""
    matrix = weights.read(name, offsets=(0, 0), lengths=place.shape).to(device)
    scales = _Place(parameter=layer.scales, holders=[(layer, "scales")])
    for part, made in zip((place, scales), layer.quantise(matrix), strict=True):
        _fill(part, device=device, read=_slicer(lambda whole=made: whole))
    return bounds_of(matrix)


def _quantise_stack(
    place: _Place, stack: NF4Stack, weights: Weights, name: str, *, device: torch.device
) -> torch.Tensor | None:
    """Reads the experts that this rank keeps, one at a time, and gives their stack what quantising
    makes of them; their `bounds_of`, or None where it keeps none."""
    (first, _), (count, _) = local_window(place.parameter)
    bounds: list[torch.Tensor] = []

    def matrices() -> Iterator[torch.Tensor]:
        for index in range(first, first + count):
            (matrix,) = weights.read(name, offsets=(index, 0, 0), lengths=(1, *stack.shape)).to(device)
            bounds.append(bounds_of(matrix))
            yield matrix

    made = stack.quantise(matrices()) if count else (torch.empty(0), torch.empty(0))
    module, attribute = place.holders[0]
    beside = f"{attribute.removesuffix(ELEMENTS)}{SCALES}"
    scales = _Place(parameter=cast(nn.Parameter, getattr(module, beside)), holders=[(module, beside)])
    for part, own in zip((place, scales), made, strict=True):
        _fill(part, device=device, read=lambda own=own, **_: own)
    return bounds_of(torch.stack(bounds)) if bounds else None


def kin_of(model: nn.Module) -> Kin:
    """The names of the whole model's weights that stand for one tensor of its folder. A trained
    copy of a tied head has no alias of its own, but its original has, perhaps on another stage."""
    kin: Kin = {}
    for place in _places(model):
        names = list(map(without_wrappers, place.names))
        for name in names:
            kin.setdefault(name, []).extend(names)
    return kin


def _stored_name(place: _Place, kin: Kin, weights: Weights, prefix: str) -> str:
    """The folder's name of a parameter: an alias of it, with or without the backbone's prefix."""
    candidates = [alias for name in place.names for alias in kin[without_wrappers(name)]]
    candidates += [name.removeprefix(prefix) for name in candidates]
    return next((name for name in candidates if name in weights.names), candidates[0])


def local_window(parameter: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(offsets, lengths) of the part of a parameter that this rank keeps. FSDP2 shards tensor
    parallelism's slices, as its placement's kind says, though its axis is first in the mesh."""
    offsets, lengths = [0] * parameter.ndim, list(parameter.shape)
    if isinstance(parameter, DTensor):
        mesh = parameter.device_mesh
        placed = enumerate(parameter.placements)
        shards = [(axis, placement) for axis, placement in placed if isinstance(placement, Shard | _StridedShard)]
        for axis, placement in sorted(shards, key=lambda shard: isinstance(shard[1], _StridedShard)):
            dim, index, degree = placement.dim % parameter.ndim, mesh.get_local_rank(axis), mesh.size(axis)
            offsets[dim] += min(index * rows_of_shard(lengths[dim], degree=degree, index=0), lengths[dim])
            lengths[dim] = rows_of_shard(lengths[dim], degree=degree, index=index)
    return tuple(offsets), tuple(lengths)


def local_windows(parameter: torch.Tensor, parts: Any) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The same of each stretch of rows; `parts`: as `rows_of_parts` has them, or None."""
    offsets, lengths = local_window(parameter)
    if parts is None or parameter.shape[:1] != (sum(parts[0]),):
        return [(offsets, lengths)]
    spans = rows_of_parts(parts, offsets[0], lengths[0])
    return [((first, *offsets[1:]), (count, *lengths[1:])) for first, count in spans]


def _fill(place: _Place, *, device: torch.device, read: Read) -> torch.Tensor | None:
    """Gives a parameter its values; `bounds_of` what was read, None if this rank keeps nothing."""
    old, bounds = place.parameter, None
    # Not DTensor.from_local, which moves its part to the mesh's device: it may belong on the host.
    value = torch.empty_like(old.detach(), device=device)
    local = value.to_local() if isinstance(value, DTensor) else value
    parts = getattr(place.holders[0][0], "parts_of_rows", None)
    if local.numel():
        # Moved in the file's type: torch would cast on the processor, then send the larger one.
        found = [read(offsets=at, lengths=size).to(device) for at, size in local_windows(old, parts)]
        part = torch.cat(found) if found[1:] else found[0]
        local.copy_(part)
        bounds = bounds_of(part)
    new = nn.Parameter(value, requires_grad=old.requires_grad)
    vars(new)["parts_of_rows"] = parts
    for module, attribute in place.holders:
        module._parameters[attribute] = new
    return bounds
