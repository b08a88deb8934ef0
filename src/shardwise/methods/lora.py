"""LoRA with PEFT's adapters; initial values depend on (seed, name, full shape), not the layout."""

import hashlib
import math
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from shardwise.errors import UnsupportedError
from shardwise.spec.adapters.targets import NEVER_ADAPTED
from shardwise.spec.job.keys import LoraSpec

_MAGNITUDE = ".lora_magnitude_vector."
_PREFIX = "base_model.model."
Shape = tuple[int, ...]

#: Parts of live names, which contain the adapter's name, and what replaces them in PEFT's files.
_SAVED_PARTS = (
    (f"{_MAGNITUDE}default.weight", _MAGNITUDE.rstrip(".")),
    (".lora_A.default.", ".lora_A."),
    (".lora_B.default.", ".lora_B."),
    (".modules_to_save.default.", "."),
)


def peft_config(lora: LoraSpec) -> Any:
    """The PEFT configuration of a job's LoRA settings; the field names are PEFT's own."""
    from peft import LoraConfig, TaskType

    return LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=lora.r,
        lora_alpha=lora.lora_alpha,  # pyright: ignore[reportArgumentType]
        lora_dropout=lora.lora_dropout,
        target_modules=lora.target_modules,
        use_rslora=lora.use_rslora,
        use_dora=lora.use_dora,
        modules_to_save=lora.modules_to_save or None,
        bias=lora.bias,
    )


def add_adapters(
    model: nn.Module, lora: LoraSpec, *, base_model: str, revision: str | None = None, exclude: str | None = None
) -> Any:
    """Adds adapters to a model on the meta device, in place, and freezes the rest; the PEFT model.
    The names that a job states were accepted before (`spec/adapters`). `base_model`, `revision`:
    what adapter_config.json names; `exclude`: a pattern of modules of the original that `model` is
    without: where adapters are loaded, none get any."""
    config = peft_config(lora)
    config.base_model_name_or_path = base_model
    config.revision = revision
    if lora.target_modules == "all-linear":
        kind: Any = model.config
        config.exclude_modules = [*NEVER_ADAPTED.get(kind.model_type, ()), *_without_sums(model)] or None
    vars(model)["name_or_path"] = base_model  # PEFT takes this name over the configuration's
    adapted = _wrapped(model, config)
    if exclude is not None:  # now: PEFT warns of a pattern that meets no module
        kept = adapted.peft_config["default"]
        left = "|".join(map(re.escape, kept.exclude_modules or ()))
        kept.exclude_modules = f"{exclude}|(.*\\.)?({left})" if left else exclude
        if kept.modules_to_save:  # which leaves none out: `norm` would be copied in a tower too
            kept.modules_to_save = [name for name, one in model.named_modules() if hasattr(one, "modules_to_save")]
    return adapted


def _without_sums(model: nn.Module) -> list[str]:
    """Names of linear layers of a class of their own that give no row for a row, to which PEFT
    would add its product: routers that give several results, and layers of groups."""
    linear = ((name, one) for name, one in model.named_modules() if isinstance(one, nn.Linear))
    return [name for name, one in linear if type(one) is not nn.Linear and not _gives_rows(one)]


def _gives_rows(linear: nn.Linear) -> bool:
    try:
        made: Any = type(linear).forward(linear, torch.empty(2, linear.in_features, device=linear.weight.device))
    except (RuntimeError, ValueError, IndexError):
        return False
    return isinstance(made, torch.Tensor) and made.shape == (2, linear.out_features)


def _wrapped(model: nn.Module, config: Any) -> Any:
    from peft import get_peft_model

    with warnings.catch_warnings():
        # PEFT asks for a property that transformers is renaming; neither concerns the user.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
        # A copy of one end of a tied model is its own tensor, in training and in what is saved.
        warnings.filterwarnings("ignore", message="Model has `tie_word_embeddings=True`", category=UserWarning)
        # Of PEFT's own patterns for stacked experts, which it follows but looks for among modules.
        warnings.filterwarnings("ignore", message="The following (rank|alpha)_pattern keys", category=RuntimeWarning)
        adapted: Any = get_peft_model(model, config, low_cpu_mem_usage=True)  # pyright: ignore[reportArgumentType]
    leave_inputs(adapted)
    return adapted


def leave_inputs(model: nn.Module) -> None:
    """Keeps PEFT from copying each adapter's input in the adapter's type, which autocast would
    undo. DoRA needs that type: it adds a small product to the base matrix before it takes norms."""
    for module in model.modules():
        if getattr(module, "lora_variant", None) == {}:
            vars(module)["cast_input_dtype_enabled"] = False


def expected_tensors(model: nn.Module, folder: Path, stored: dict[str, Shape]) -> tuple[dict[str, Shape], ...]:
    """Name -> shape of tensors that PEFT expects of an adapter folder, and of those that it makes
    of the `stored` ones; adds adapters to `model`."""
    from peft import PeftConfig, get_peft_model_state_dict

    config = PeftConfig.from_pretrained(str(folder))
    vars(model)["name_or_path"] = config.base_model_name_or_path
    adapted = _wrapped(model, config)
    state: dict[str, torch.Tensor] = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    loaded = _loaded(adapted, {key: torch.empty(shape, device="meta") for key, shape in stored.items()})
    return tuple({name: tuple(tensor.shape) for name, tensor in found.items()} for found in (state, loaded))


def _loaded(adapted: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What PEFT makes of an adapter's tensors: it renames them as transformers does the base's."""
    from peft.utils.transformers_weight_conversion import convert_peft_adapter_state_dict_for_transformers as made

    return made(adapted, adapted.peft_config["default"], dict(tensors))


def find_keys(adapted: Any) -> None:
    """Finds for `saved_key` from which keys PEFT loads adapters, of the whole model: their names,
    where what transformers renames does not look like what it is renamed to, as `shared_experts.`
    by the pattern `shared_expert.`. Raises UnsupportedError: PEFT makes a name of no key."""
    from transformers.conversion_mapping import get_model_conversion_mapping

    base, found = adapted.get_base_model(), dict[str, str]()
    names = [_saved_name(name) for name, _ in base.named_parameters() if is_adapter(name)]
    left = sorted(set(names) - _loaded(adapted, {name: torch.empty(0) for name in names}).keys())
    transforms = get_model_conversion_mapping(base) if left else ()
    for back in (one.reverse_transform() for one in transforms if not hasattr(one, "operations")):  # renamings alone
        keys = [_PREFIX + back.rename_source_key(name.removeprefix(_PREFIX))[0] for name in left]
        # Each key holds its number, by which it is known under the name that PEFT gives it.
        made = _loaded(adapted, {key: torch.tensor(number) for number, key in enumerate(keys)})
        found |= {name: keys[number] for number, name in enumerate(left) if name in made and made[name] == number}
    if lost := [name for name in left if name not in found]:
        module = lost[0].partition(".lora_")[0].removeprefix(_PREFIX)
        raise UnsupportedError(f"PEFT does not load an adapter of {module}; leave it out of lora.target_modules")
    vars(adapted)["keys"] = found


def is_adapter(name: str) -> bool:
    """Whether a parameter is an adapter's, and not the base model's."""
    return ".lora_" in name


def saved_key(name: str, adapted: Any) -> str:
    """The key of a trained parameter in PEFT's files, after `find_keys`. PEFT's own function needs
    all modules and gathered weights on the rank that asks. Each save checks that PEFT loads it."""
    return vars(adapted)["keys"].get(saved := _saved_name(name), saved)


def _saved_name(name: str) -> str:
    for live, saved in _SAVED_PARTS:
        name = name.replace(live, saved)
    return _PREFIX + name


def initial_adapter(name: str, shape: tuple[int, ...], *, seed: int) -> Callable[[], torch.Tensor] | None:
    """Makes the whole initial value of an adapter parameter in float32; None for one of the base
    model or a copy of it. As in PEFT, A is Kaiming-uniform with a = sqrt(5), that is uniform within
    1/sqrt(fan_in), and B is zero; DoRA's magnitudes are set by `start_magnitudes`."""
    if not is_adapter(name):
        return None
    if ".lora_B." in name or _MAGNITUDE in name:
        return partial(torch.zeros, shape)
    return partial(_uniform, name, shape, seed=seed)


def _uniform(name: str, shape: tuple[int, ...], *, seed: int) -> torch.Tensor:
    digest = hashlib.sha256(f"{seed}/{name}/{shape}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    bound = 1 / math.sqrt(math.prod(shape[1:]))
    return (torch.rand(shape, generator=generator) * 2 - 1) * bound


@torch.no_grad()
def start_magnitudes(model: nn.Module) -> None:
    """Initialises DoRA's magnitudes: norms of the base matrix's rows, in float32 (Liu et al.,
    2024). B is zero: the adapted matrix has the same. For sharded rows, ranks sum squares."""
    for module in model.modules():
        magnitudes: Any = getattr(module, "lora_magnitude_vector", None)
        if not magnitudes:
            continue
        layer: Any = module
        for magnitude in magnitudes.values():
            _start(magnitude.weight, layer.get_base_layer().weight, dim=0 if layer.fan_in_fan_out else 1)


def _start(magnitudes: nn.Parameter, weight: torch.Tensor, *, dim: int) -> None:
    """Copies the norms of a matrix over one dim into this rank's part of the magnitudes."""
    if not isinstance(weight, DTensor) or not isinstance(magnitudes, DTensor):
        magnitudes.copy_(torch.linalg.vector_norm(weight.float(), dim=dim))
        return
    norms = torch.linalg.vector_norm(weight.to_local().float(), dim=dim)
    mesh, placed = weight.device_mesh, list(weight.placements)
    for axis, placement in enumerate(placed):
        if isinstance(placement, Shard | _StridedShard) and placement.dim == dim:
            squares = norms.square()
            dist.all_reduce(squares, group=mesh.get_group(axis))
            norms, placed[axis] = squares.sqrt(), Replicate()
    whole = DTensor.from_local(norms, mesh, placed, run_check=False, shape=magnitudes.shape, stride=(1,))
    magnitudes.to_local().copy_(whole.redistribute(placements=magnitudes.placements).to_local())
