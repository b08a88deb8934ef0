"""Small configurations of every family, and what transformers builds of them without memory."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from shardwise.catalog.families.known import FAMILIES
from tests.unit.configs import config

LAYERS = 5
SMALL = config("", 64, 112, LAYERS, 4, 2, vocab=97, head_dim=24, max_position_embeddings=40)
SMALL |= dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 6)
SMALL |= {"num_experts_per_tok": 2, "moe_intermediate_size": 20, "intermediate_size_mlp": 52}
SMALL |= {"shared_expert_intermediate_size": 36, "q_lora_rank": 10, "kv_lora_rank": 14}
SMALL |= {"qk_nope_head_dim": 12, "qk_rope_head_dim": 6, "v_head_dim": 8}
#: Without these transformers does not build or run the families.
ALSO = {"deepseek_v2": {"num_key_value_heads": 4}, "gpt_neo": {"attention_types": [[["global"], LAYERS]]}}
ALSO |= {"deepseek_v3": {"num_key_value_heads": 4, "head_dim": 6, "n_group": 1, "topk_group": 1}}
ALSO |= {"gptj": {"rotary_dim": 8}, "helium": {"head_dim": 16}, "opt": {"word_embed_proj_dim": 64}}
#: OLMoE has no other than hidden_size / heads, and reads a null as no number.
UNSTATED = {("olmoe", "head_dim")}


def small_config(kind, **changes):
    family = FAMILIES[kind]
    stated = {key: value for key, value in SMALL.items() if key in family.defaults and (kind, key) not in UNSTATED}
    own = {family.keys.get(key, key): value for key, value in stated.items()}
    return {"model_type": kind, **own, **ALSO.get(kind, {}), **changes}


def their_config(config):
    """transformers' own, with special tokens that a small vocabulary has."""
    keys = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, **config}
    return AutoConfig.for_model(keys.pop("model_type"), **keys)


def build(config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(their_config(config))
    model.tie_weights()
    return model
