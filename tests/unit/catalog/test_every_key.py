"""Every key of a configuration that transformers knows, changed by itself: what it does to the parameters is counted.

A key that a family's rules forget is no error anywhere else: the plan is of another model, silently.
"""

import inspect
import re

import pytest
from huggingface_hub.errors import StrictDataclassError

from shardwise.catalog.config import shape_from_data
from shardwise.catalog.families import FAMILIES
from shardwise.errors import ModelError
from tests.marks import every_second
from tests.unit.catalog.small import build, small_config

#: One dense block and one of experts.
FEW = {"num_hidden_layers": 2, "first_k_dense_replace": 1}
READ = re.compile(r"config\.([a-z]\w*)|getattr\(\s*(?:self\.)?config,\s*\"(\w+)\"")
#: What transformers builds, and here is refused: those for a head_dim have no forward pass that runs.
REFUSED = {
    ("deepseek_v3", "n_shared_experts", 0): "n_shared_experts is 0; expected a whole number from 1",
    ("glm4_moe", "n_shared_experts", 0): "n_shared_experts is 0; expected a whole number from 1",
    ("gpt2", "add_cross_attention", True): "it is not a decoder-only language model",
    ("olmoe", "head_dim", 8): "head_dim is 8, and .* runs with none but hidden_size / num_attention_heads, 16",
    ("phi", "qk_layernorm", True): "head_dim is 24, and .* runs with none but .*, 16",
    ("helium", "head_dim", 8): "head_dim is 8, and .* runs with none but .*, 16",
    ("helium", "hidden_size", 128): "head_dim is 16, and .* runs with none but .*, 32",
    ("helium", "num_attention_heads", 8): "head_dim is 16, and .* runs with none but .*, 8",
}
#: What its classes raise at values that they do not expect.
UNBUILT = (ArithmeticError, AttributeError, LookupError, RuntimeError, StrictDataclassError, TypeError, ValueError)
REFUSED_KEYS = {(kind, key) for kind, key, _ in REFUSED}


def few_layers(kind):
    family = FAMILIES[kind]
    changes = {family.keys.get(key, key): value for key, value in FEW.items() if key in family.defaults}
    return small_config(kind, **changes, **({"attention_types": [[["global"], 2]]} if kind == "gpt_neo" else {}))


def keys_of(model):
    """Those of the configuration's class, their other names, and what the model's code reads besides."""
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
    """Of transformers' model; None where it does not build one."""
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
@pytest.mark.parametrize("kind", every_second(FAMILIES))
def test_no_key_changes_the_parameters_unseen(kind):
    plain, seen, wrong = parameters(few_layers(kind)), set(), []
    for config, change, expected in changes_of(kind):
        seen.add(expected)
        found = ours(config)
        refused = found is None and (expected == plain or (kind, change.partition("=")[0]) in REFUSED_KEYS)
        if found != expected and not refused:
            wrong.append(f"{change}: {found}, transformers {expected}")
    assert not wrong
    assert len(seen) >= 5  # else nothing was changed


def ours(config):
    """Parameters of the shape; None where the file is refused."""
    try:
        return shape_from_data(config, file="-").num_parameters
    except ModelError:
        return None


@pytest.mark.parametrize(("change", "message"), REFUSED.items())
def test_what_is_refused_is_refused_by_name(change, message):
    kind, key, value = change
    with pytest.raises(ModelError, match=message):
        shape_from_data(few_layers(kind) | {key: value}, file="-")
