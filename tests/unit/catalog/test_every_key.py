"""Each key of a configuration that transformers knows, changed by itself: counted or refused."""

import inspect
import re

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForCausalLM

from shardwise.catalog.config import shape_from_data
from shardwise.catalog.families.known import FAMILIES
from shardwise.errors import ModelError
from tests.marks import every
from tests.refusals import must_refuse
from tests.unit.catalog.small import build, small_config, their_config

#: One dense block and one of experts.
FEW = {"num_hidden_layers": 2, "first_k_dense_replace": 1}
READ = re.compile(r"config\.([a-z]\w*)|getattr\(\s*(?:self\.)?config,\s*\"(\w+)\"")
#: What transformers builds, and here is refused: a head_dim without a forward pass that runs.
REFUSED = {
    ("gpt2", "add_cross_attention", True): "it is not a decoder-only language model",
    ("olmoe", "head_dim", 8): "head_dim is 8, and .* runs with none but hidden_size / num_attention_heads, 16",
    ("phi", "qk_layernorm", True): "head_dim is 24, and .* runs with none but .*, 16",
    ("helium", "head_dim", 8): "head_dim is 8, and .* runs with none but .*, 16",
    ("helium", "hidden_size", 128): "head_dim is 16, and .* runs with none but .*, 32",
    ("helium", "num_attention_heads", 8): "head_dim is 16, and .* runs with none but .*, 8",
}
YARN = {"rope_type": "yarn", "factor": 2.0}
LLAMA3 = {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FACTORS = {"short_factor": [1.0, 1.5], "long_factor": [1.0, 1.5]}
#: What its code does not build, or does not run (counted, and not trained); "": what it runs.
DIES = [
    ("llama", {"head_dim": 7}, "head_dim is 7, and rotary positions turn its halves: write an even one"),
    ("llama", {"hidden_size": 66}, "hidden_size 66 is not a multiple of num_attention_heads 4"),
    ("gemma", {"num_key_value_heads": None}, "num_key_value_heads is None; expected a whole number from 1"),
    ("qwen2", {"layer_types": ["sliding_attention"] * 2}, "sliding_window is null, and its code masks with a"),
    ("mixtral", {"num_experts_per_tok": 7}, "num_experts_per_tok is 7, and there are 6 experts in a block"),
    ("glm4_moe", {"topk_group": 2}, "n_group is 1 and topk_group 2, by which its code does not choose among 6 experts"),
    ("deepseek_v3", {"n_group": 6}, "n_group is 6 and topk_group 1, by which its code does not choose among 6"),
    ("deepseek_v3", {"num_attention_heads": 8}, "num_key_value_heads is 4; expected 8, as each head of this attention"),
    ("deepseek_v3", {"qk_rope_head_dim": 12}, "qk_rope_head_dim is 12 and head_dim 6; expected one even number"),
    ("qwen2", {"head_dim": None}, "head_dim is None; expected a whole number from 1"),
    ("deepseek_v2", {"qk_rope_head_dim": 3}, "qk_rope_head_dim is 3 and head_dim 3; expected one even number"),
    ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc'; expected one of greedy, group_limited_gr"),
    ("gptj", {"rotary_dim": 9}, "rotary_dim is 9; expected an even number up to the heads' width, 16"),
    ("gpt_neo", {"num_layers": 3}, "attention_types has 2 entries, and there are 3 blocks; write one for each"),
    ("falcon", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn is 2, which its code runs in the new decoder"),
    ("internlm3", {"qkv_bias": True}, "qkv_bias and bias differ, and its code has both or neither: write one value"),
    ("gemma2", {"final_logit_softcapping": 30}, "final_logit_softcapping is 30; expected a number such as 30.0 or "),
    ("mpt", {"attn_config": {"clip_qkv": 8}}, "attn_config.clip_qkv is 8; expected a number such as 8.0 or null"),
    ("llama", {"pad_token_id": 97}, "pad_token_id is 97, and of the vocabulary's 97 none is; write null"),
    ("llama", {"return_dict": None}, "return_dict is None, and its code reads what its parts give by names; leave it"),
    ("smollm3", {"no_rope_layers": []}, "no_rope_layers has 0 entries, and there are 2 blocks; write one entry for ea"),
    ("bloom", {"layer_types": ["full_attention"]}, "layer_types has 1 entries, and there are 2 blocks; write one"),
    ("qwen2", {"layer_types": ["conv"] * 2}, "layer_types has 'conv'; expected full_attention or sliding_attention"),
    ("gpt_neo", {"attention_types": [None]}, "attention_types has 0 entries, and there are 2 blocks; write one for"),
    ("gpt_neo", {"attention_layers": ["local"]}, "attention_layers has 1 entries, and there are 2 blocks; write one"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0; expected a number above 0"),
    ("llama", {"rope_scaling": {"rope_type": "longrope", **FACTORS}}, "short_factor is [1.0, 1.5] beside rope_type lo"),
    ("llama", {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": None}}, "original_max_position_embeddin"),
    ("gemma2", {"rope_scaling": {**YARN, "mscale": "1", "mscale_all_dim": 1}}, "mscale is '1' beside rope_type yarn; "),
    ("gemma2", {"rope_parameters": {"full_attention": YARN}}, "rope_parameters has 'full_attention', and its code has"),
    ("gpt_oss", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; expected 1, as its code turns whole"),
    ("bloom", {"rope_parameters": YARN}, "rope_type is 'yarn', and its code reads none; leave it out"),
    ("bloom", {"rope_parameters": True}, "rope_parameters is True; expected an object of keys, or null"),
    ("bloom", {"attention_dropout": 2.0}, "attention_dropout is 2.0; expected a number from 0 to 1"),
    ("llama", {"initializer_range": -1.0}, "initializer_range is -1.0; expected a number from 0 on"),
    ("llama", {"rope_parameters": {"rope_type": "linear"}}, "factor is None beside rope_type linear; write the one"),
    ("phi", {"partial_rotary_factor": 2.0}, "partial_rotary_factor is 2.0; expected a number from 0 to 1"),
    ("granitemoe", {"logits_scaling": None}, "logits_scaling is None; expected a number such as 0.5"),
    ("mixtral", {"head_dim": None, "rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_type is 'yarn', and its "),
    ("ministral", {"sliding_window": None}, "sliding_window is None; expected a whole number from 1"),
    ("exaone4", {"sliding_window": None}, "sliding_window is null, and transformers reads no such file without layer"),
    ("gemma2", {"sliding_window": None}, "sliding_window is null, and its code masks with a window; write a number"),
    ("llama", {"rope_scaling": {"type": "su"}}, "rope_type is 'su', and its code knows default, linear, dynamic, yarn"),
    ("llama", {"partial_rotary_factor": None}, ""),
    ("gemma", {"rope_parameters": {"partial_rotary_factor": None}}, ""),
    ("qwen2", {"layer_types": ["attention"] * 2}, ""),
    ("starcoder2", {"hidden_size": 66}, ""),
    ("gpt_neo", {"attention_types": [[["global", "local"], 12]], "attention_layers": ["local"] * 2}, ""),
    ("falcon", {"multi_query": False, "num_kv_heads": 2}, "num_kv_heads is 2; expected 4, as multi_query"),
]
#: What its classes raise at values that they do not expect.
UNBUILT = (ArithmeticError, AttributeError, LookupError, NameError, RuntimeError, StrictDataclassError, TypeError)
UNBUILT += (ValueError, AssertionError)
REFUSED_KEYS = {(kind, key) for kind, key, _ in REFUSED} | {(kind, key) for kind, change, _ in DIES for key in change}
#: Sizes of the usual keys that no forward of these runs with.
RUNS = {"deepseek_v2": {"n_group": 1, "topk_group": 1}}
#: Switches that no configuration class may list, as transformers reads them off any.
UNLISTED = {"is_causal": (False, None), "use_bidirectional_attention": (True,)}
TOKENS = torch.arange(1, 13)[None]
MESSAGE = "by which a token sees those after it, and a language model is trained to foretell them; leave the key out"


def few_layers(kind):
    family = FAMILIES[kind]
    changes = {family.keys.get(key, key): value for key, value in FEW.items() if key in family.defaults}
    return small_config(kind, **changes, **({"attention_types": [[["global"], 2]]} if kind == "gpt_neo" else {}))


def keys_of(model):
    """Those of the configuration's class, their other names, and what the model's code reads."""
    read = READ.findall(inspect.getsource(inspect.getmodule(type(model))))
    names = {*model.config.to_dict(), *type(model.config).attribute_map, *(one or other for one, other in read)}
    return sorted(name for name in names if not callable(getattr(model.config, name, None)))


def other_values(value):
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (2 * value, value // 2)
    return (2, 20, True) if value is None else ()


def parameters(config):
    try:
        return sum(p.numel() for p in build(config).parameters())
    except UNBUILT:
        return None


def changes_of(kind):
    plain = few_layers(kind)
    model = build(plain)
    for key in keys_of(model):
        for value in other_values(getattr(model.config, key, None)):
            config = {**plain, key: value}
            if (count := parameters(config)) is not None:
                yield config, f"{key}={value}", count


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("kind", every(5, FAMILIES))
def test_no_key_changes_the_parameters_unseen(kind):
    plain, seen, wrong = parameters(few_layers(kind)), set(), []
    for config, change, expected in changes_of(kind):
        seen.add(expected)
        found, _ = read(config)
        refused = found is None and (expected == plain or (kind, change.partition("=")[0]) in REFUSED_KEYS)
        if found != expected and not refused:
            wrong.append(f"{change}: {found}, transformers {expected}")
    assert not wrong
    assert len(seen) >= 5  # else nothing was changed


def read(config):
    """Parameters as we count them, and why it is not trained, or not counted."""
    try:
        shape = shape_from_data(config, file="-")
    except ModelError as error:
        return None, str(error).removeprefix("-: ")
    return shape.num_parameters, shape.untrained


@pytest.mark.parametrize(("change", "message"), REFUSED.items())
def test_what_is_refused_is_refused_by_name(change, message):
    kind, key, value = change
    must_refuse(ModelError, message, shape_from_data, few_layers(kind) | {key: value}, file="-")


@pytest.mark.parametrize(("kind", "change", "message"), DIES)
def test_what_transformers_does_not_run_is_refused_or_counted_alone(kind, change, message):
    config = few_layers(kind) | RUNS.get(kind, {})
    assert sees_ahead(config) is False
    assert sees_ahead(config | change) is (None if message else False)
    assert read(config | change)[1][: len(message) or None] == message


def sees_ahead(config):
    """Whether logits follow later tokens; None where transformers does not build or run it."""
    torch.manual_seed(0)
    try:
        model = AutoModelForCausalLM.from_config(their_config(config)).eval()
        with torch.no_grad():
            moved = model(TOKENS).logits - model(torch.cat((TOKENS[:, :-1], TOKENS[:, :1]), dim=1)).logits
    except UNBUILT:
        return None
    return bool(moved[:, :-1].abs().max() > 1e-4)


def switches(plain):
    """Every key of its configuration that is true, false or null, the other way round."""
    theirs = build(plain)
    stated = {key: getattr(theirs.config, key, None) for key in keys_of(theirs)}
    found = {key: (not value,) for key, value in stated.items() if value is None or isinstance(value, bool)}
    return [(key, value) for key, values in {**found, **UNLISTED}.items() for value in values]


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILIES)
def test_no_switch_lets_a_token_see_those_after_it_unseen(kind):
    plain = {**few_layers(kind), **RUNS.get(kind, {})}
    assert sees_ahead(plain) is False
    ahead = [{k: v} for k, v in switches(plain) if sees_ahead({**plain, k: v})]
    assert [change for change in ahead if MESSAGE not in read({**plain, **change})[1]] == []


@pytest.mark.parametrize(("kind", "value"), [("llama", False), ("llama", None), ("mamba", False), ("gemma3", False)])
def test_what_says_it_is_not_causal_is_refused_whatever_its_family(kind, value):
    with pytest.raises(ModelError, match=f"^f: is_causal is {value}, {MESSAGE}$"):
        shape_from_data({"model_type": kind, "is_causal": value}, file="f")
    assert shape_from_data(small_config("llama", is_causal=True), file="f").family == "llama"


def test_the_language_model_of_a_model_of_text_and_images_is_asked_too():
    part = small_config("gemma3_text", use_bidirectional_attention=True)
    with pytest.raises(ModelError, match=r"^f, text_config: use_bidirectional_attention is True, by which"):
        shape_from_data({"model_type": "gemma3", "text_config": part}, file="f")
