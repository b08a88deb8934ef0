"""Tiny configurations of every family that transformers maps to a causal language model."""

import re
import tomllib
from itertools import groupby
from pathlib import Path
from typing import Any

from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

#: Tokens of a tiny model: more than its tokenizer has.
VOCABULARY = 336

#: Blocks of a tiny model, unless a list of kinds of blocks needs more of them to have one of each.
LAYERS = 4

#: Patterns of whole keys, and the number that they get; the first that matches counts.
_SIZES: tuple[tuple[str, int], ...] = (
    (r"(num_hidden_layers|n_layers?|num_layers|(num_)?(decoder|encoder)_layers|num_blocks)", LAYERS),
    (r"\w*vocab_size\w*", VOCABULARY),
    (r"(ngram_vocab_size_base)", 64),
    # Among the scores of few heads some have ties, which rows of another length settle otherwise.
    (r"index_n_heads", 32),
    (r"(mamba_n_heads|n_mamba_heads|mamba_num_heads)", 8),
    (r"(num_heads|n_heads?|attention_heads|\w*num_attention_heads|linear_num_\w*heads|o_groups)", 4),
    (r"((swa_)?num_key_value_heads|num_kv_heads|num_query_groups|swa_num_key_value_heads)", 2),
    (r"(rotary_dim|d_rel)", 8),
    (r"(head_dim|\w+_head_dim|kv_channels|attention_head_size|mamba_d_head|mamba_headdim|d_head|dim_head)", 16),
    (r"(moe_intermediate_size|expert_ffn_hidden_size|\w*shared_intermediate_size|ffn_hidden_size_moe)", 32),
    (
        r"(intermediate_size\w*|\w*ffn_dim|dff|dim_ff|d_inner|ffn_hidden_size|feed_forward_size|\w+_intermediate_size)",
        96,
    ),
    (r"(hidden_size|d_model|n_embd|emb_dim|dim|embedding_dim|embedding_size|word_embed_proj_dim|lru_width)", 64),
    (r"(attention_hidden_size|mamba_d_ssm|\w*_embedding_size|backbone_hidden_size)", 64),
    (r"(\w*num_(local_|routed_|moe_)?experts|n_routed_experts|zero_expert_num)", 4),
    (r"(num_experts_per_tok(en)?|moe_topk|moe_k)", 2),
    (r"(n_group|n_groups|num_expert_group|mamba_n_groups|mamba_ngroups)", 2),
    (r"(topk_group|\w*num_shared_experts|n_shared_experts|first_k_dense_replace|num_dense_layers)", 1),
    (r"(moe_layer_start_index|num_nextn_predict_layers)", 1),
    (r"(\w*lora_rank|\w+_rank|time_step_rank|mamba_dt_rank|hc_lowrank)", 16),
    (r"(mamba_d_state|state_size|ssm_state_size)", 8),
    (r"\w*chunk_size(_feed_forward)?|block_size|index_block_size", 16),
    (r"(index_topk|index_topk_blocks|\w*window\w*|local_attention|keep_window_size)", 16),
    (r"(\w*max_position\w*|n_positions|n_ctx|max_seq_len|model_max_length|context_length|\w+_max_distance)", 256),
    (r"(attn_layer_period|expert_layer_period|layer_group_size|global_attn_every_n_layers|no_rope_layer_interval)", 2),
    (r"(attn_layer_offset|expert_layer_offset)", 1),
    (r"(num_kv_shared_layers)", 0),
)

#: Numbers that no pattern knows: those larger than this become it.
_LARGEST = 64

#: Keys that stay: they count nothing that makes a model larger.
_KEPT = r"(\w*_token_id|\w*_token_index|pretraining_tp|seed|rope_theta|chunk_size_feed_forward|\w*_multiple\w*)"

_SPECIALS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

#: What a family needs beside.
EXTRAS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def families() -> tuple[str, ...]:
    """Every family of the causal language models of the installed transformers."""
    return tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_config(family: str, **changes: Any) -> Any:
    """A configuration of a few thousand parameters. Raises whatever its class raises."""
    kind = CONFIG_MAPPING[family]
    try:
        stated = kind().to_dict()
    except Exception:  # noqa: BLE001 - some have no default configuration
        stated = {}
    return kind(**{**_shrunk(stated, family), **EXTRAS.get(family, {}), **changes})


def _shrunk(stated: dict[str, Any], family: str) -> dict[str, Any]:
    layers, chosen = _blocks(stated)
    made: dict[str, Any] = {}
    for key, value in stated.items():
        if isinstance(value, dict) and "model_type" in value:
            made[key] = {"model_type": value["model_type"], **_shrunk(value, value["model_type"])}
            made[key] |= EXTRAS.get(value["model_type"], {})
        elif isinstance(value, list) and value and all(type(one) is int for one in value) and len({*value}) == 1:
            made[key] = [_size(key, value[0], layers)] * (layers if len(value) > layers else len(value))
        elif isinstance(value, list) and chosen and len(value) == chosen[1]:
            made[key] = [value[index] for index in chosen[0]]
        elif key in _SPECIALS:
            made[key] = _SPECIALS[key]
        elif type(value) is int and not re.fullmatch(_KEPT, key):
            made[key] = _size(key, value, layers)
    if made.get("kv_lora_rank") and "num_key_value_heads" in made:
        made["num_key_value_heads"] = made["num_attention_heads"]
        made.pop("qk_head_dim", None)
    return {key: value for key, value in made.items() if stated[key] != value or isinstance(value, dict)}


def _size(key: str, value: int, layers: int) -> int:
    found = next((size for pattern, size in _SIZES if re.fullmatch(pattern, key)), None)
    if found is None:
        return min(value, _LARGEST)
    if re.fullmatch(_SIZES[0][0], key):
        return layers
    return min(value, found) if value > 0 else value


def _blocks(stated: dict[str, Any]) -> tuple[int, tuple[list[int], int] | None]:
    """How many blocks, and which of those that lists have one entry each for, with their number."""
    number = next((v for k, v in stated.items() if re.fullmatch(_SIZES[0][0], k) and type(v) is int), 0)
    lists = [v for v in stated.values() if isinstance(v, list) and len(v) == number and number > 1]
    if not lists:
        return min(number, LAYERS) or LAYERS, None
    # A list of more values has a number for each block, and names no kinds.
    kinds = [tuple(str(one[index]) for one in lists if len({*map(str, one)}) <= 3) for index in range(number)]
    first = sorted({kind: index for index, kind in reversed([*enumerate(kinds)])}.values())
    chosen = first[:6] if len(first) >= LAYERS else sorted({*first, *_near(kinds, first)})[: max(LAYERS, len(first))]
    return len(chosen), (chosen, number)


def _near(kinds: list[Any], firsts: list[int]) -> list[int]:
    """The first blocks of the longest runs, so that some kind stands twice."""
    runs = [[index for index, _ in run] for _, run in groupby(enumerate(kinds), key=lambda pair: pair[1])]
    return [index for run in runs for index in run if index not in firsts][: LAYERS - len(firsts)]
