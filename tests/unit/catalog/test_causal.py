"""Attention of the catalogue's families is causal, whatever a configuration's switches say, or the file is refused."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from shardwise.catalog.config import shape_from_data
from shardwise.catalog.families import FAMILIES
from shardwise.errors import ModelError
from tests.unit.catalog.small import build, small_config
from tests.unit.catalog.test_every_key import UNBUILT, few_layers, keys_of

#: Sizes of the usual keys that no forward of these runs with.
RUNS = {
    "gptj": {"rotary_dim": 8},
    "deepseek_v2": {"num_key_value_heads": 4, "n_group": 1, "topk_group": 1},
    "deepseek_v3": {"num_key_value_heads": 4, "head_dim": 6},
}
#: Switches that no configuration class may list, as transformers reads them off any.
UNLISTED = {"is_causal": (False, None), "use_bidirectional_attention": (True,)}
TOKENS = torch.arange(1, 13)[None]
MESSAGE = "by which a token sees those after it, and a language model is trained to foretell them; leave the key out"


def sees_ahead(config):
    """Whether the logits of tokens follow those after them; None where transformers does not build or run it."""
    keys = {key: value for key, value in config.items() if key != "model_type"}
    torch.manual_seed(0)
    try:
        theirs = AutoConfig.for_model(config["model_type"], pad_token_id=0, bos_token_id=0, eos_token_id=0, **keys)
        model = AutoModelForCausalLM.from_config(theirs).eval()
        with torch.no_grad():
            moved = model(TOKENS).logits - model(torch.cat((TOKENS[:, :-1], TOKENS[:, :1]), dim=1)).logits
    except UNBUILT:
        return None
    return bool(moved[:, :-1].abs().max() > 1e-4)


def is_refused(config):
    try:
        shape_from_data(config, file="-")
    except ModelError as error:
        return MESSAGE in str(error)
    return False


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
    unseen = [{k: v} for k, v in switches(plain) if sees_ahead({**plain, k: v}) and not is_refused({**plain, k: v})]
    assert unseen == []


@pytest.mark.parametrize(
    ("kind", "key"), [("gemma3_text", "use_bidirectional_attention"), ("falcon", "output_attentions")]
)
def test_a_switch_that_lets_tokens_see_ahead_is_refused_by_its_key(kind, key):
    config = few_layers(kind) | {key: True}
    assert sees_ahead(config)
    with pytest.raises(ModelError, match=f"^f: {key} is True, {MESSAGE}$"):
        shape_from_data(config, file="f")


@pytest.mark.parametrize("value", [False, None])
@pytest.mark.parametrize("kind", ["llama", "mamba", "gemma3"])
def test_what_says_it_is_not_causal_is_refused_whatever_its_family(kind, value):
    with pytest.raises(ModelError, match=f"^f: is_causal is {value}, {MESSAGE}$"):
        shape_from_data({"model_type": kind, "is_causal": value}, file="f")
    assert shape_from_data(small_config("llama", is_causal=True), file="f").family == "llama"


def test_the_language_model_of_a_model_of_text_and_images_is_asked_too():
    part = small_config("gemma3_text", use_bidirectional_attention=True)
    with pytest.raises(ModelError, match=r"^f, text_config: use_bidirectional_attention is True, by which"):
        shape_from_data({"model_type": "gemma3", "text_config": part}, file="f")
