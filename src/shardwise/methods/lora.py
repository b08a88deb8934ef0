"""LoRA: PEFT makes the adapters and names them; their initial values depend on (seed, name, full shape) alone, so that
they are the same under every layout."""

from __future__ import annotations

import hashlib
import math
import warnings
from typing import Any

import torch
from torch import nn

from shardwise.errors import JobError, UnsupportedError
from shardwise.spec.job import LoraSpec


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


def add_adapters(model: nn.Module, lora: LoraSpec, *, base_model: str) -> Any:
    """Puts adapters into a model (in place) whose parameters are on the meta device, and freezes the rest.

    Args:
        model: from transformers.
        lora: the job's settings.
        base_model: what adapter_config.json names as the model that the adapter belongs to.

    Returns:
        The PEFT model, which names and saves the adapters.

    Raises:
        JobError: the target modules are not in the model.
    """
    from peft import get_peft_model

    config = peft_config(lora)
    config.base_model_name_or_path = base_model
    vars(model)["name_or_path"] = base_model  # PEFT takes this name over the configuration's
    try:
        with warnings.catch_warnings():
            # PEFT asks for a property that transformers is renaming; neither concerns the user.
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
            return get_peft_model(model, config, low_cpu_mem_usage=True)  # pyright: ignore[reportArgumentType]
    except ValueError as error:
        raise JobError(f"lora.target_modules is {lora.target_modules!r}: {str(error).splitlines()[0]}") from None


def is_adapter(name: str) -> bool:
    """Whether a parameter is an adapter's own (its values stand in no base model)."""
    return ".lora_" in name


def initial_adapter(name: str, shape: tuple[int, ...], *, seed: int) -> torch.Tensor | None:
    """The whole initial value of an adapter parameter in float32, or None for a parameter of the base model.

    A is Kaiming-uniform with a = sqrt(5), that is uniform within 1/sqrt(fan_in), and B is zero, as in PEFT (Hu et al.,
    2021, use a Gaussian A); the random stream is this parameter's own.

    Raises:
        UnsupportedError: the adapter has other parts, such as DoRA's magnitude, whose start depends on the base.
    """
    if not is_adapter(name):
        return None
    if ".lora_B." in name:
        return torch.zeros(shape)
    if ".lora_A." not in name:
        raise UnsupportedError(f"{name} is neither LoRA's A nor its B, and this version trains no other adapter")
    digest = hashlib.sha256(f"{seed}/{name}/{shape}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    bound = 1 / math.sqrt(math.prod(shape[1:]))
    return (torch.rand(shape, generator=generator) * 2 - 1) * bound
