"""The shape of a model whose family has no row in the catalogue, read from a build on the meta
device.

Parameters are counted (`generic.py`), and one forward is run without numbers, to see how its blocks
split. A model's own Python code is never run.
"""

import json
import warnings
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch
from torch import nn

from shardwise.catalog import stated
from shardwise.catalog.config import shape_from_data
from shardwise.catalog.families.known import FAMILIES
from shardwise.catalog.models import config_of, read_model, scaled_config, scaled_shape
from shardwise.errors import ModelError, UnsupportedError, said
from shardwise.models.anatomy import Anatomy, find_anatomy
from shardwise.models.built.generic import BuiltDecoder, bare_experts_of
from shardwise.models.built.head import is_plain
from shardwise.models.built.splits import read_ends
from shardwise.models.built.watch import WATCHED, Seen, is_linear, watch, watchable
from shardwise.models.keys import Keys, why_unread
from shardwise.models.routing import loss_left_out
from shardwise.models.stage import StageEnds
from shardwise.models.weights import Weights
from shardwise.models.wrapper import auto_class, find_inside, language_weights, leave_others, text_config
from shardwise.spec.job.rope import RopeScaling
from shardwise.spec.model.shape import ModelShape, Wrapper

#: Families that transformers lists as causal language models, of which its lists of encoders and of
#: encoder-decoders do not say what they are.
_BESIDE_TEXT = ("vision_config", "audio_config")
_ENCODERS = ("bert-generation", "xlnet")
_BEHIND_ENCODERS = ("trocr", "whisper", "prophetnet")
#: Whose code reads positions that are given as places in a table that has one more row before them.
_SHIFTED = ("kosmos_2_text_model", "kosmos_2_5_text_model")
#: How the names of families end that draft tokens for another model.
_DRAFTS = "_assistant"


def shape_of(name: str, *, revision: str | None = None, rope: RopeScaling | None = None) -> ModelShape:
    """The shape of a model on this machine. Raises ModelError: it is none that can be trained."""
    try:
        return read_model(name, revision=revision, rope=rope)
    except stated.UnlistedFamilyError as error:
        data = config_of(name, offline=True, revision=revision)
        return scaled_shape(built_shape(scaled_config(data, rope), file=error.file), rope, data)


def built_shape(data: dict[str, Any], *, file: str) -> ModelShape:
    """The shape of the model that a config.json is of. Raises ModelError: it is not understood."""
    stated.refuse_foreign(data, file=file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of keys that a configuration class does not know
            return replace(_read(data, file=file), published=stated.published_as(data))
    except UnsupportedError as error:
        kind = data.get("model_type")
        row = "is not built as its keys say" if kind in FAMILIES else "has no row in the catalogue"
        message = f"model_type {kind!r} {row}, and its build is not understood: {error}"
        raise ModelError.at(file, message) from None


def _read(data: dict[str, Any], *, file: str) -> ModelShape:
    """Of the language model, built and watched once. Raises UnsupportedError: it is no decoder."""
    storage, whole = stated.storage_type(data, file=file), config_from(data)
    config = text_config(whole)
    if config is not whole:
        data = json.loads(config.to_json_string())
        if data.get("use_bidirectional_attention") is True:
            raise UnsupportedError("its language model lets tokens of a prompt see those after them")
        stated.refuse_foreign(data, file=f"{file}{stated.PART}")
    with watchable():
        anatomy, wrapper = _built(whole)
        shape = _known_shape(anatomy, data, dtype=storage) if wrapper else None
        seen, why = _watched(anatomy)
    why = (shape.untrained if shape else "") or why
    why = why or _misfit(anatomy.model, config.to_dict(), followed=seen is not None)
    shape = shape or BuiltDecoder(anatomy, config, data, seen).shape(storage)
    shape = replace(shape, untrained=why or loss_left_out(config) or _unread(anatomy.model, Path(file)))
    if wrapper is None:
        return shape
    return replace(
        shape,
        names=replace(shape.names, root=anatomy.backbone_name),
        plain_head=shape.plain_head and is_plain(anatomy, width=shape.embedding_width),
        eager_attention=shape.eager_attention or not getattr(anatomy.model, "_supports_sdpa", False),
        wrapper=wrapper,
        bare_experts=bare_experts_of(wrapper.family),
    )


def _misfit(model: nn.Module, config: dict[str, Any], *, followed: bool) -> str:
    """Why a model does not run, of what a forward without numbers does not meet."""
    for name, module in ((name, one) for name, one in model.named_modules() if not is_linear(one)):
        if empty := [key for key, own in module._parameters.items() if own is not None and not own.numel()]:
            return f"{name}.{empty[0]} has no elements, as a number in its configuration is 0"
    heads, keys = (config.get(f"num_{of}_heads") or 0 for of in ("attention", "key_value"))
    if not followed and keys and heads % keys:
        return f"num_key_value_heads {keys} does not divide num_attention_heads {heads}"
    return stated.misfit_of_numbers(config)


def _unread(model: nn.Module, place: Path) -> str:
    """Why the weights in a folder, beside a file, or else those published, are not read."""
    try:
        weights = Weights(place.parent if place.is_file() else place)
        Keys(model, weights.names, weights.shape, reads=language_weights(model))
    except ModelError:  # there are none
        return why_unread(model)
    except UnsupportedError as error:
        return str(error)
    return ""


def seen_ends(config: Any) -> StageEnds:
    """What runs outside the blocks of a model. Raises UnsupportedError: why it has no stages."""
    with watchable(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        anatomy, _ = _built(config)
        seen, why = _watched(anatomy)
    if seen is None:
        why = why or f"the forward of {config.model_type} cannot be followed without numbers; use fsdp"
        raise UnsupportedError(why)
    return read_ends(anatomy, seen)


def config_from(data: dict[str, Any]) -> Any:
    """transformers' configuration of a config.json. Raises UnsupportedError: none of a decoder."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if data["model_type"].endswith(_DRAFTS):
        raise UnsupportedError("it drafts tokens for another model, whose hidden states, keys and values it reads")
    try:
        kind: Any = CONFIG_MAPPING[data["model_type"]]
        config = kind.from_dict(kind._decode_special_floats(deepcopy(data)))
    except Exception as error:  # noqa: BLE001 - a stranger's configuration meets a library's own checks
        raise UnsupportedError(f"transformers cannot read it: {said(error)}") from None
    _refuse_other_kinds(text_config(config), whole=config)
    return config


def _refuse_other_kinds(config: Any, *, whole: Any) -> None:
    """Refuses encoders, and what decodes behind one, by itself or inside a `whole` model."""
    from transformers.models.auto import modeling_auto as lists

    kind, decodes = config.model_type, getattr(config, "is_decoder", None)
    behind = kind in lists.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES or kind in _BEHIND_ENCODERS
    if behind or any(getattr(one, "is_encoder_decoder", False) for one in (config, whole)):
        raise UnsupportedError("it is the decoder of an encoder-decoder, which reads what an encoder made")
    if whole is not config and not (named := whole.return_dict):
        raise UnsupportedError(stated.UNNAMED.format(named))
    if whole.model_type in ("gemma4", "gemma4_unified") and config.pad_token_id is None:
        raise UnsupportedError("pad_token_id is null, and its code writes it where images stand: write a number")
    few = kind == "gemma4_text" and config.hidden_size_per_layer_input and config.vocab_size_per_layer_input
    if few and few < config.vocab_size:  # Gemma 3n's code asks
        raise UnsupportedError(f"vocab_size_per_layer_input is {few}; expected the vocabulary's {config.vocab_size}")
    if kind in _SHIFTED:
        raise UnsupportedError("its code counts positions from behind its padding token's, and here they begin at 0")
    if kind in (*lists.MODEL_FOR_MASKED_LM_MAPPING_NAMES, *_ENCODERS) and not decodes:
        raise UnsupportedError("it is an encoder, in which a token sees those after it")


def _built(config: Any) -> tuple[Anatomy, Wrapper | None]:
    def build(**words: Any) -> Any:
        with torch.device("meta"):
            words |= {"dtype": torch.float32, "trust_remote_code": False}
            return auto_class(config).from_config(deepcopy(config), **words)

    try:
        try:
            model = build(attn_implementation=WATCHED, experts_implementation=WATCHED)
        except Exception:  # noqa: BLE001 - some families know no attention but their own
            model = build()
        model.tie_weights()
        model.initialize_weights()  # of numbers that its code divides by, or draws with
    except Exception as error:  # noqa: BLE001 - whatever a constructor raises, the model cannot be had
        raise UnsupportedError(f"transformers does not build it ({type(error).__name__}: {said(error)})") from None
    inside, every, wrapper = find_inside(model), _count(model), None
    if inside is not None:
        leave_others(model, inside)
        wrapper = Wrapper(family=model.config.model_type, frozen_parameters=every - _count(model))
    elif any(part in config.sub_configs for part in _BESIDE_TEXT):
        raise UnsupportedError("it is a model of more than text, in which transformers has no language model by itself")
    try:
        return find_anatomy(model.eval()), wrapper
    except AttributeError as error:
        raise UnsupportedError(f"{type(model).__name__} is no language model with a list of blocks ({error})") from None


def _watched(anatomy: Anatomy) -> tuple[Seen | None, str]:
    """A forward as the trainer calls it, or else one that is told nothing of packed documents; None
    where it reads numbers, or where its sizes do not go together: then with what it raises. Raises
    UnsupportedError: it wants more than text."""
    for packed in (True, False):
        try:
            return watch(anatomy, packed=packed), ""
        except Exception as error:  # noqa: BLE001 - whatever a model's code raises where there are no numbers
            raised = error
    why = f"its forward raises {type(raised).__name__}: {said(raised)}"
    code = [*walk_tb(raised.__traceback__)][-1][0].f_globals["__name__"].partition(".")[0]
    if code in ("torch", "transformers") and isinstance(raised, TypeError | AttributeError):
        raise UnsupportedError(why)
    # What reads numbers raises so where there are none.
    return None, "" if isinstance(raised, NotImplementedError) or "meta" in why else why


def _known_shape(anatomy: Anatomy, data: dict[str, Any], *, dtype: str) -> ModelShape | None:
    """The shape by the rules of its family; None where these do not count what was built."""
    if data["model_type"] not in FAMILIES:
        return None
    try:
        shape = shape_from_data({**data, "tie_word_embeddings": anatomy.tied, "dtype": dtype}, file="text_config")
    except ModelError:  # of something that its rules do not have
        return None
    if shape.num_parameters != _count(anatomy.model):
        return None
    names = {id(module): name for name, module in anatomy.model.named_modules()}
    found = shape.names.inside(anatomy.backbone_name, head=names[id(anatomy.head)])
    return replace(shape, names=found) if found.blocks == names[id(anatomy.blocks)] else None


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
