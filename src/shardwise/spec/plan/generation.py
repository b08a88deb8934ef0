"""What generating text needs: weights and keys and values (KV cache), for planner and `chat`."""

from dataclasses import asdict, dataclass
from typing import Any

from shardwise.spec.model.shape import ModelShape

#: Of free memory, the share for weights, keys and values: the rest is for activations and gaps.
USABLE = 0.95


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Memory for so many sequences at once, each of so many tokens of prompt and answer together.

    Attributes:
        cache_bytes: keys and values.
        total_bytes: with the weights.
        fits: on the hardware; None where it is open.
    """

    length: int
    sequences: int
    cache_bytes: int
    total_bytes: int
    fits: bool | None


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What generating needs.

    Attributes:
        model: as the job names it.
        type_name: of the weights that are not quantised, of keys and of values.
        weight_bytes: of all weights, adapters included.
        asked: for the job's `data.max_length` and `train.global_batch_size`.
        table: for other lengths and numbers of sequences; lengths up to the model's positions, and
            these.
        hardware: its name; where it is open, the cheapest that holds what is asked. None: no GPU on
            offer does.
        capacity_bytes: what weights and keys and values may fill of it.
        usd_per_hour: its typical price; None where no price is known.
        whole_heads_bytes: of latent attention, whose latents are counted, what keys and values of
            whole heads would take of a token; None of other attention.
        blocks_without: that keep a state of one size in place of keys and values; not counted.
    """

    model: str
    method: str
    type_name: str
    weight_bytes: int
    asked: Needs
    table: tuple[Needs, ...]
    hardware: str | None
    capacity_bytes: int | None
    usd_per_hour: float | None
    whole_heads_bytes: int | None = None
    blocks_without: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain data, with `task` and a version."""
        return {"version": 1, "task": "generate", **asdict(self)}


def cache_elements(model: ModelShape, length: int) -> int:
    """Elements that all blocks keep of one sequence of `length` tokens: keys and values, in a
    block's window where it has one; of latent attention latents and rotary keys, as in the versions
    of transformers that this is for, vLLM and SGLang (DeepSeek-V2, 2024, section 2.1)."""
    latent, blocks = _latent_width(model), attending_blocks(model)
    if latent is not None:
        return length * blocks * latent
    windowed = blocks if model.windowed_layers is None else model.windowed_layers
    windowed = windowed if model.sliding_window else 0
    return (windowed * min(length, model.sliding_window or 0) + (blocks - windowed) * length) * _head_elements(model)


def attending_blocks(model: ModelShape) -> int:
    """How many blocks keep keys and values: of a model with convolutions over the sequence, as
    recurrences have, those that project keys beside them; all where blocks share what they have."""
    if model.shares_weights or not any("conv" in matrix.name for _, matrix in model.every_matrix):
        return model.num_layers
    blocks = 0
    for kind in model.kinds:
        parts = [matrix.name.rpartition(".") for matrix in kind.matrices]
        recurrent = {module for module, _, name in parts if "conv" in name}
        attends = (name in _OF_KEYS and module not in recurrent for module, _, name in parts)
        blocks += kind.num_layers if any(attends) else 0
    return blocks


_OF_KEYS = ("k_proj", "qkv_proj", "kv_b_proj")


def whole_heads(model: ModelShape) -> int | None:
    """Elements of a token's keys and values of whole heads; None if attention has no latents."""
    return None if _latent_width(model) is None else model.num_layers * _head_elements(model)


def _head_elements(model: ModelShape) -> int:
    return model.num_key_value_heads * (model.head_dim + (model.value_head_dim or model.head_dim))


def _latent_width(model: ModelShape) -> int | None:
    return next((m.rows for _, m in model.every_matrix if m.name.endswith("kv_a_proj_with_mqa")), None)
