"""config.json -> ModelShape, held against models that transformers builds without memory."""

import inspect
import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from tools.types_of_keys import types
from transformers import AutoConfig
from transformers.pytorch_utils import Conv1D

from shardwise.catalog.config import shape_from_data
from shardwise.catalog.families.known import FAMILIES, TEXT_PARTS, TYPES
from shardwise.errors import ModelError
from shardwise.models.anatomy import drops_out
from shardwise.spec.model.shape import ModelShape
from tests.unit.catalog.small import LAYERS, SMALL, build, small_config

#: Family -> what else its configurations may say, of 5 blocks.
VARIANTS = json.loads(Path(__file__).with_name("variants.json").read_text(encoding="utf-8"))
CASES = [small_config(kind, tie_word_embeddings=tied) for kind in FAMILIES for tied in (False, True)]
CASES += [small_config(kind, **changes) for kind, variants in VARIANTS.items() for changes in variants]
#: Bloom's code has no key for these; OPT's projection is wanted where it differs from the width.
NOT_IN_TRANSFORMERS = {("bloom", "max_position_embeddings"), ("bloom", "hidden_act"), ("mpt", "hidden_act")}
NOT_IN_TRANSFORMERS |= {("opt", "word_embed_proj_dim")}


def blocks_of(model):
    lists = (m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == LAYERS)
    return next(lists)


def place(name):
    first, _, rest = name.partition(".")
    is_mlp = first in ("mlp", "ffn", "feed_forward", "block_sparse_moe", "fc1", "fc2")
    return ("experts" if rest.startswith("experts.") else "mlp") if is_mlp else "attention"


def their_counts(model):
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    inside = {id(p): name for block in blocks_of(model) for name, p in block.named_parameters()}
    counts = Counter()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if module is embedding or module is head:
                kind = "head" if module is head and parameter is not embedding.weight else "embedding"
            elif "Norm" in type(module).__name__ or name == "sinks":
                kind = "norms"
            elif isinstance(module, torch.nn.Embedding):
                kind = "positions"
            else:
                kind = place(inside[id(parameter)]) if id(parameter) in inside else "other"
            counts[kind] += parameter.numel() if not (module is head and kind == "embedding") else 0
    return +counts


def our_counts(shape):
    counts = Counter(
        embedding=shape.embedding_parameters,
        head=shape.head_parameters,
        positions=shape.position_parameters,
        norms=shape.final_norm_parameters + sum(norm.num_parameters for norm in shape.outer_norms),
        other=sum(matrix.num_parameters for matrix in shape.outer_matrices),
    )
    for kind in shape.kinds:
        counts["norms"] += kind.num_layers * sum(norm.num_parameters for norm in kind.norms)
        for matrix in kind.matrices:
            counts[place(matrix.name)] += kind.num_layers * matrix.num_parameters
    return +counts


def name_of(config):
    changes = {key: value for key, value in config.items() if SMALL.get(key) != value and key != "model_type"}
    return f"{config['model_type']}-{'-'.join(f'{key}={value}' for key, value in changes.items())}"[:80]


@pytest.mark.parametrize("config", CASES, ids=name_of)
def test_a_family_has_the_parameters_the_names_and_the_blocks_of_the_module_tree(config):
    model, shape = build(config), shape_from_data(config, file="config.json")
    assert our_counts(shape) == their_counts(model)
    assert shape.num_parameters == sum(p.numel() for p in model.parameters())
    assert shape.tied == (model.get_output_embeddings().weight is model.get_input_embeddings().weight)
    names_are_those_of(model, shape)
    theirs = Counter(frozenset(their_matrices(block)) for block in blocks_of(model))
    assert {frozenset(our_matrices(kind)): kind.num_layers for kind in shape.kinds} == theirs
    assert sum(kind.num_layers for kind in shape.kinds) == LAYERS
    assert ModelShape.from_json(shape.to_json()) == shape
    if FAMILIES[config["model_type"]].whole_every or {"use_sliding_window", "layer_types"} & config.keys():
        windowed = sum(kind != "full_attention" for kind in model.config.layer_types)
        assert windowed == (0 if shape.sliding_window is None else shape.windowed_layers or LAYERS)


def names_are_those_of(model, shape):
    names, called = shape.names, {id(module): name for name, module in model.named_modules()}
    assert names.embedding == called[id(model.get_input_embeddings())]
    assert names.head == called[id(model.get_output_embeddings())]
    assert names.blocks == called[id(blocks_of(model))]
    around = names.embedding.rpartition(".")[0]
    beside = {name for name in called.values() if name.rpartition(".")[0] == around and name != names.embedding}
    weighty = {name for name in beside if any(True for _ in model.get_submodule(name).parameters())}
    norms = {name for name in weighty if "Norm" in type(model.get_submodule(name)).__name__}
    positions = {name for name in weighty if isinstance(model.get_submodule(name), torch.nn.Embedding)}
    assert norms - {f"{names.backbone}.{norm.name}" for norm in shape.outer_norms} <= {names.final_norm}
    assert names.final_norm is None or names.final_norm in beside
    assert positions == ({names.positions} if names.positions else set())


def test_heads_that_do_not_divide_the_width_are_refused_but_where_transformers_rounds_down():
    # The default GLM-4-MoE has 96 heads on 4,096.
    default = {"model_type": "glm4_moe", "num_hidden_layers": 2}
    shape = shape_from_data(default, file="config.json")
    assert (shape.head_dim, shape.num_parameters) == (4096 // 96, sum(p.numel() for p in build(default).parameters()))
    with pytest.raises(ModelError, match="hidden_size 4096 is not a multiple of num_attention_heads 96"):
        shape_from_data({**default, "model_type": "llama", "num_attention_heads": 96}, file="config.json")


def their_matrices(block):
    for name, parameter in block.named_parameters():
        module = block.get_submodule(name.rpartition(".")[0])
        if "Norm" not in type(module).__name__ and not name.endswith(("bias", "sinks")):
            linear = isinstance(module, (torch.nn.Linear, Conv1D)) and "Router" not in type(module).__name__
            yield name.removesuffix(".weight"), tuple(parameter.shape), linear


def our_matrices(kind):
    for m in kind.matrices:
        shape = (m.columns, m.rows) if m.transposed else (m.rows, m.columns)
        yield m.name, (m.count, *shape) if m.stacked else shape, m.adaptable


@pytest.mark.parametrize("cap", [None, 20.0])
@pytest.mark.parametrize("kind", FAMILIES)
def test_what_only_eager_attention_can_do_is_known(kind, cap):
    config = small_config(kind, attn_logit_softcapping=cap)
    shape, theirs = shape_from_data(config, file="-"), type(build(config))
    # Falcon's one head of keys is broadcast by PyTorch, in the kernel that writes scores out; GPT-J
    # has another attention from transformers 5.24 on.
    only = kind == "gptj" or (kind == "falcon" and shape.num_key_value_heads == 1)
    assert shape.eager_attention == (only or not theirs._supports_sdpa)
    # Their code names the cap where attention is called, and nowhere else.
    caps = "softcap=self." in inspect.getsource(inspect.getmodule(theirs))
    assert shape.attention_softcap == (caps and cap is not None)


@pytest.mark.parametrize("kind", FAMILIES)
def test_what_drops_out_by_itself_is_known(kind):
    assert shape_from_data(small_config(kind), file="-").drops_out == drops_out(build(small_config(kind)))
    theirs = AutoConfig.for_model(kind).to_dict()
    none = {key: 0.0 for key, rate in theirs.items() if "drop" in key and isinstance(rate, float)}
    assert not shape_from_data(small_config(kind, **none), file="-").drops_out
    assert shape_from_data(small_config(kind, attention_dropout=0.2), file="-").drops_out


@pytest.mark.parametrize("kind", FAMILIES)
def test_defaults_are_those_of_transformers(kind):
    family, theirs = FAMILIES[kind], AutoConfig.for_model(kind)
    # None here means computed, as there; the last three are filled in by transformers from others.
    computed = {"num_key_value_heads", "head_dim", "intermediate_size", "num_kv_heads", "moe_layers", "no_rope_layers"}
    for key, value in family.defaults.items():
        name = family.keys.get(key, key)
        name = name if hasattr(theirs, name) else key
        if value is None and key in computed:
            assert getattr(type(theirs), name, None) is None, f"{kind}.{name}"
            continue
        if key == "sliding_window" and family.optional_window:
            continue
        if (kind, key) not in NOT_IN_TRANSFORMERS:
            assert (getattr(theirs, name) or None) == (value or None), f"{kind}.{name}"


@pytest.mark.parametrize("kind", TEXT_PARTS)
def test_the_language_model_of_a_model_of_text_and_images_is_read(kind):
    part = small_config(TEXT_PARTS[kind][0])
    whole = {"model_type": kind, "text_config": part, "torch_dtype": "bfloat16", "vision_config": {}}
    assert shape_from_data(whole, file="-").num_parameters == shape_from_data(part, file="-").num_parameters
    assert shape_from_data(whole, file="-").storage_dtype == "bfloat16"
    whole["text_config"] = small_config("llama")
    assert shape_from_data(whole, file="-").family == "llama"


@pytest.mark.slow
def test_a_key_is_held_to_the_types_that_transformers_holds_it_to():
    assert types() == TYPES
