"""config.json -> ModelShape, strictly: plain JSON with known keys and sane values, or an error.

No code is run for it. A configuration that names Python code beside a model_type that transformers
has is read as that type, as transformers does when told to trust no code.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from shardwise.catalog import stated
from shardwise.catalog.families.blocks import Dimensions
from shardwise.catalog.families.family import LOGIT_TRANSFORMS, Family, blocks_of
from shardwise.catalog.families.known import FAMILIES, TEXT_PARTS, TYPES
from shardwise.errors import ModelError, quoted
from shardwise.spec.model.shape import ModelShape, Wrapper

MAX_BYTES = 1024 * 1024
_LARGEST = 10**8

#: Optional numbers of which 0 does not stand for null.
_FROM_ONE = ("q_lora_rank", "head_dim", "rotary_dim", "n_group", "topk_group", "word_embed_proj_dim")

#: Numbers that scale what a model computes, of which no model has 0.
_SCALES = (*LOGIT_TRANSFORMS, "embedding_multiplier", "residual_multiplier", "attention_multiplier")
#: How the types of JSON, by Python's names, are called in sentences.
_SCALARS = {"float": "a number such as 0.5", "int": "a whole number", "bool": "true or false", "NoneType": "null"}
_WORDS = {**_SCALARS, "str": "a text", "list": "a list", "dict": "an object of keys"}
_LEFT_OUT = object()

#: Activations whose memory is known, in transformers' words.
ACTIVATIONS = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", "relu2")
_ONE_OF = f"one of {', '.join(ACTIVATIONS)}"


def read_config_file(path: Path) -> tuple[dict[str, Any], str]:
    """What a config.json holds, and its name. Raises ModelError: it cannot be read."""
    file = str(path)
    try:
        with path.open("rb") as opened:
            raw = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise ModelError.at(file, f"cannot be read: {error.strerror}") from None
    return parse_config(raw, file=file), file


def parse_config(raw: bytes, *, file: str) -> dict[str, Any]:
    """The JSON object of a configuration. Raises ModelError: too large, or no object."""
    if len(raw) > MAX_BYTES:
        raise ModelError.at(file, f"is larger than {MAX_BYTES} bytes; a model's config.json is a page")
    if raw.startswith(b"version https://git-lfs"):
        raise ModelError.at(file, "is a Git LFS pointer, not the file; run `git lfs pull`")
    try:
        value: Any = json.loads(raw.decode("utf-8-sig"), parse_constant=_not_a_number)
    except json.JSONDecodeError as error:
        raise ModelError.at(f"{file}:{error.lineno}", f"is not JSON: {error.msg}") from None
    except RecursionError:
        raise ModelError.at(file, "is nested too deeply for a configuration") from None
    except ValueError as error:
        raise ModelError.at(file, f"is not JSON in UTF-8: {error}") from None
    if not isinstance(value, dict):
        raise ModelError.at(file, f"holds a JSON {type(value).__name__}; expected an object of keys")
    return cast(dict[str, Any], value)


def _not_a_number(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def shape_from_data(data: dict[str, Any], *, file: str) -> ModelShape:
    """The shape that a configuration describes; of a model of text and images, that of its language
    model. Raises ModelError: a sentence naming the key, what it holds and what was expected."""
    kind = data.get("model_type")
    if kind is None:
        raise ModelError.at(file, "has no model_type; it is not a transformers configuration")
    if not isinstance(kind, str) or kind not in {*FAMILIES, *TEXT_PARTS}:
        raise stated.unlisted(data, file=file, known=sorted({*FAMILIES, *TEXT_PARTS}))
    stated.refuse_foreign(data, file=file)
    if kind in FAMILIES:
        return _shape(_Config(file=file, data=data, family=FAMILIES[kind]))
    family, backbone, head = TEXT_PARTS[kind]
    shape = shape_from_data(_text_part(data, family, head=head, file=file), file=f"{file}{stated.PART}")
    names, published = shape.names.inside(backbone, head=head), stated.published_as(data) or shape.published
    return replace(shape, names=names, wrapper=Wrapper(family=kind), published=published)


def _text_part(data: dict[str, Any], family: str, *, head: str, file: str) -> dict[str, Any]:
    """The configuration of the language model inside a model of text and images. The outer one says
    how weights are stored, and whether a head that belongs to the whole model is tied."""
    inside: Any = data.get("text_config")
    if not isinstance(inside, dict):
        raise ModelError.at(file, f"text_config is {quoted(inside)}; expected the keys of the language model")
    outer = ("torch_dtype", "dtype") if "." in head else ("torch_dtype", "dtype", "tie_word_embeddings")
    inner = {key: value for key, value in cast(dict[str, Any], inside).items() if key not in outer[2:]}
    return {"model_type": family, **inner, **{key: data[key] for key in outer if key in data}}


@dataclass(frozen=True, kw_only=True)
class _Config:
    """Typed access to the keys, with the family's names and defaults."""

    file: str
    data: dict[str, Any]
    family: Family

    def error(self, message: str) -> ModelError:
        return ModelError.at(self.file, message)

    def name(self, key: str) -> str:
        """The name that transformers reads a key by, where a file may state it twice."""
        own = self.family.keys.get(key, key)
        counts = key in self.family.aliases or (key in self.family.fallbacks and own not in self.data)
        return key if key in self.data and counts else own

    def value(self, key: str) -> Any:
        """What the file says, or the family's default; None for a key that it does not read."""
        if key not in self.family.defaults:
            return None
        return self.data.get(self.name(key), self.family.defaults[key])

    def checked(self, key: str, holds: Callable[[Any], bool], expected: str) -> Any:
        found = self.value(key)
        if not holds(found):
            raise self.error(f"{self.name(key)} is {quoted(found)}; expected {expected}")
        return found

    def whole(self, key: str, *, most: int = _LARGEST) -> int:
        least = 0 if key in self.family.from_zero else 1
        return self.checked(
            key, lambda v: type(v) is int and least <= v <= most, f"a whole number from {least} to {most}"
        )

    def optional_whole(self, key: str) -> int | None:
        """A whole number; None for a null that the family reads, and for a 0 that stands for it."""
        reads = self.family.defaults.get(key) is None or key in self.family.nullable
        reads = reads and not (key in self.family.no_null and self.name(key) in self.data)
        zero = self.value(key) == 0 and key in self.family.optional and key not in _FROM_ONE
        return None if zero or (self.value(key) is None and reads) else self.whole(key)

    def layers(self, key: str) -> tuple[int, ...] | None:
        def listed(found: Any) -> bool:
            return found is None or (isinstance(found, list) and {*map(type, cast(list[Any], found))} <= {int})

        found = self.checked(key, listed, "a list of whole numbers")
        return None if found is None else tuple(found)


def _dimensions(config: _Config) -> tuple[Dimensions, str]:
    heads = config.whole("num_attention_heads")
    hidden = config.whole("hidden_size")
    head_dim = config.optional_whole("head_dim")
    if hidden % heads and (config.family.even_width or (head_dim is None and hidden < heads)):
        raise config.error(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    head_dim = head_dim or hidden // heads
    kv_heads = config.optional_whole("num_key_value_heads") or heads
    if heads % kv_heads and "kv_lora_rank" not in config.family.numbers:  # whose keys are of no heads
        raise config.error(f"num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}")
    for key, words in config.family.choices.items():
        config.checked(key, words.__contains__, f"one of {', '.join(words)}")
    layers = config.whole("num_hidden_layers", most=stated.MAX_LAYERS)
    if "attention_types" in config.family.defaults:
        key, listed = _attention_types(config)
        if listed != layers:
            raise config.error(f"{key} has {listed} entries, and there are {layers} blocks; write one for each")
    booleans = [key for key, default in config.family.defaults.items() if isinstance(default, bool)]
    plain = Dimensions(
        hidden=hidden,
        intermediate=config.optional_whole("intermediate_size") or 4 * hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=config.whole("vocab_size"),
        positions=config.whole("max_position_embeddings"),
        flags={key: bool(config.value(key)) for key in booleans}
        | {"in_groups": config.value("topk_method") in (None, "group_limited_greedy")},
        numbers={key: config.whole(key) for key in config.family.numbers},
        optional={key: config.optional_whole(key) for key in config.family.optional},
        layer_lists={key: config.layers(key) for key in config.family.layer_lists},
    )
    if head_dim * heads != hidden and config.family.even_heads(plain):
        raise config.error(
            f"head_dim is {head_dim}, and transformers' code of this model runs with none but hidden_size / "
            f"num_attention_heads, {hidden / heads:g}"
        )
    odd = config.family.rotates and head_dim % 2
    misfit = f"head_dim is {head_dim}, and rotary positions turn its halves: write an even one" if odd else ""
    counts = (plain.numbers.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts"))
    count, routed = next(filter(None, counts), None), plain.numbers.get("num_experts_per_tok", 0)
    if count is not None and routed > count:
        misfit = misfit or f"num_experts_per_tok is {routed}, and there are {count} experts in a block"
    misfit = misfit or _misfit_of_types(config) or _misfit_of_kinds(config, layers)
    misfit = misfit or stated.misfit_of_numbers(config.data)
    width, padding = plain.numbers.get("qk_rope_head_dim", head_dim), config.data.get("pad_token_id")
    misfit = misfit or stated.misfit_of_rotation(config.data, config.family, width=width)
    if config.family.pads and isinstance(padding, int) and not -plain.vocab <= padding < plain.vocab:
        misfit = misfit or f"pad_token_id is {padding}, and of the vocabulary's {plain.vocab} none is; write null"
    if not (named := config.data.get("return_dict", True)):
        misfit = misfit or stated.UNNAMED.format(named)
    return config.family.refine(plain), misfit or config.family.misfit(plain)


def _attention_types(config: _Config) -> tuple[str, int]:
    """Which key lists kinds of attention, transformers' own where a file has it, and for how many
    blocks; 0 where the list is not understood."""
    if listed := config.data.get("attention_layers"):
        return "attention_layers", len(cast(list[Any], listed)) if isinstance(listed, list) else 0
    with suppress(TypeError, ValueError):
        return "attention_types", sum(len(kinds) * count for kinds, count in config.value("attention_types"))
    return "attention_types", 0


def _misfit_of_types(config: _Config) -> str:
    """Which key holds a type that transformers' class does not take, or scales by nothing."""
    for types, keys in TYPES[config.data["model_type"]].items():
        for key in keys:
            outer, _, name = key.rpartition(".")
            inside: Any = config.data.get(outer) if outer else config.data
            found: Any = cast(dict[str, Any], inside).get(name, _LEFT_OUT) if isinstance(inside, dict) else _LEFT_OUT
            if found is not _LEFT_OUT and type(found).__name__ not in types.split():
                such = f"{found:d}.0" if type(found) is int else "0.5"
                words = " or ".join(_WORDS[one] for one in types.replace("int float", "float").split())
                return f"{key} is {quoted(found)}; expected {words.replace('0.5', such)}"
    for key in ("attn_logit_softcapping", *_SCALES):
        found, unset = config.value(key), config.family.defaults.get(key) is None or key in config.family.nullable
        if found == 0 or (found is None and not unset):
            return f"{config.name(key)} is {quoted(found)}; expected a number such as 0.5"
    return ""


def _misfit_of_kinds(config: _Config, layers: int) -> str:
    """Which list of kinds of blocks transformers' code of a model does not run."""
    window = "chunked_attention" if config.name("sliding_window") == "attention_chunk_size" else "sliding_attention"
    kinds = {"layer_types": ("full_attention", window, "attention"), "mlp_layer_types": ("dense", "sparse")}
    for key, known in {**kinds, "no_rope_layers": (0, 1)}.items():
        listed: Any = config.data.get(key)
        if listed is None or (listed, key, window) == ([], "no_rope_layers", "chunked_attention"):
            continue  # [] stands for Llama 4's own
        entries = len(cast(list[Any], listed)) if isinstance(listed, list) else 0
        if entries < layers or (entries > layers and key in kinds):
            return f"{key} has {entries} entries, and there are {layers} blocks; write one entry for each block"
        if other := [kind for kind in cast(list[Any], listed) if kind not in known]:
            return f"{key} has {quoted(other[0])}; expected {' or '.join(map(str, known))}"
    return ""


def _shape(config: _Config) -> ModelShape:
    family, (d, misfit) = config.family, _dimensions(config)
    if not family.activation and config.value("hidden_act") not in ACTIVATIONS and stated.installed():
        raise stated.UnlistedFamilyError(config.data, file=config.file)
    drops_out, drops_stream, drops_scores = stated.dropped({**family.defaults, **config.data})
    blocks, has_window = blocks_of(family, d), not family.optional_window or d.flags["use_sliding_window"]
    window = config.optional_whole("sliding_window") if has_window else None
    if window is None and _slides(config):
        missing = family.windowless and not config.data.get("layer_types")
        why = "transformers reads no such file without layer_types" if missing else "its code masks with a window"
        remedy = "write layer_types" if missing else "write a number"
        misfit = f"{config.name('sliding_window')} is null, and {why}; {remedy}"
    windowed = _windowed(config, d) if window else None
    width = d.optional.get(family.embedding_key or "")
    values = d.numbers.get("v_head_dim", d.head_dim)
    return ModelShape(
        family=config.data["model_type"],
        bare_experts=family.bare_experts,
        num_layers=d.layers,
        hidden_size=d.hidden,
        intermediate_size=d.intermediate,
        num_attention_heads=d.heads,
        num_key_value_heads=d.kv_heads,
        head_dim=d.head_dim,
        vocab_size=d.vocab,
        max_position_embeddings=max(d.positions, stated.stretched_positions(config.data)),
        matrices=blocks[0].matrices,
        norm_parameters_per_layer=sum(norm.num_parameters for norm in blocks[0].norms),
        final_norm_parameters=sum(norm.num_parameters for norm in family.final_norm(d)),
        position_parameters=0 if family.position_offset is None else (d.positions + family.position_offset) * d.hidden,
        mlp=family.mlp_kind,
        norm=family.norm_kind,
        tied=d.flags["tie_word_embeddings"],
        head_bias=family.head_bias(d),
        storage_dtype=stated.storage_type(config.data, file=config.file),
        sliding_window=None if windowed == 0 else window,
        norms=blocks[0].norms,
        activation=family.activation or config.checked("hidden_act", ACTIVATIONS.__contains__, _ONE_OF),
        attention_softcap=config.value("attn_logit_softcapping") is not None,
        partial_rotary=family.partial_rotary,
        scales_stream=family.scales_stream,
        parallel_residual=family.parallel(d),
        plain_head=all(config.value(key) in (None, 1, 1.0) for key in LOGIT_TRANSFORMS),
        caps_logits=config.value("final_logit_softcapping") is not None,
        other_blocks=blocks[1:],
        windowed_layers=windowed or None,
        value_head_dim=None if values == d.head_dim else values,
        embedding_size=None if width in (None, d.hidden) else width,
        outer_matrices=family.outer_matrices(d),
        outer_norms=family.outer_norms(d),
        names=family.names if family.final_norm(d) else replace(family.names, final_norm=None),
        eager_attention=family.eager_attention or (family.broadcasts_keys and d.kv_heads == 1 < d.heads),
        layerdrop=dict(stated.rates(config.data)).get("layerdrop", 0.0) if "layerdrop" in family.defaults else 0.0,
        steady_positions=stated.steady_positions(config.data, positions=d.positions),
        drops_out=drops_out,
        drops_stream=drops_stream,
        drops_scores=drops_scores,
        counts_routes=stated.counts_routes(config.data),
        published=stated.published_as(config.data),
        untrained=misfit,
    )


def _slides(config: _Config) -> bool:
    """Whether transformers makes a mask with a window, whatever it is."""
    family, kinds = config.family, config.data.get("layer_types")
    if isinstance(kinds, list) and (family.windowless or (family.windowed and family.experts is None)):
        return "sliding_attention" in kinds
    return family.whole_every > 1


def _windowed(config: _Config, d: Dimensions) -> int | None:
    """How many blocks' attention has the window: as listed, or all but every n-th; None for all."""
    every, key, listed = config.family.whole_every, config.family.pattern_key, config.data.get("layer_types")
    if isinstance(listed, list) and listed:
        windowed = sum(kind not in ("full_attention", "attention") for kind in cast(list[Any], listed)[: d.layers])
    elif config.family.windowed is not None:
        windowed = config.family.windowed(d)
    else:
        every = config.data.get(key, every) if key else every
        if type(every) is not int or every < (key in config.data):
            raise config.error(f"{key} is {quoted(every)}; expected a whole number from 1")
        windowed = d.layers - d.layers // every if every else d.layers
    return None if windowed == d.layers else windowed
