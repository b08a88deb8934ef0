"""The shape of a model whose family has no row in the catalogue, read from a build on the meta
device.

One forward is run without numbers (`programs/model_shape.py`). Blocks of attention and an MLP are
recognised, and have rules for what they save (`roles.py`); of all others parameters are counted
(`generic.py`). A model's own Python code is never run.
"""

import json
import warnings
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch

from shardwise.catalog import stated
from shardwise.catalog.models import config_of, read_model
from shardwise.catalog.rope import scaled_shape
from shardwise.errors import ModelError, UnsupportedError, said
from shardwise.models.anatomy import Anatomy, drops_out, find_anatomy
from shardwise.models.built.ends import read_ends, why_unstaged
from shardwise.models.built.generic import bare_experts_of, generic_shape
from shardwise.models.built.head import is_plain
from shardwise.models.built.outside import Outside, read_outside
from shardwise.models.built.roles import Block, attention_of, read_block
from shardwise.models.built.sliced import slices_alike, why_whole
from shardwise.models.built.traced import Seen
from shardwise.models.built.watch import DOCUMENTS, WATCHED, watch, watchable
from shardwise.models.built.wrapped import known_shape, leave_language_model
from shardwise.models.stage import StageEnds
from shardwise.models.wrapper import auto_class, text_config
from shardwise.spec.job.rope import RopeScaling
from shardwise.spec.model.shape import ModelShape, OtherBlocks, Split, Wrapper

#: Families that transformers lists as causal language models, of which its lists of encoders and of encoder-decoders
#: do not say what they are.
_BESIDE_TEXT = ("vision_config", "audio_config")
_ENCODERS = ("bert-generation", "xlnet")
_BEHIND_ENCODERS = ("trocr", "whisper", "prophetnet")
#: Whose code reads positions that are given as places in a table that has one more row before them.
_SHIFTED = ("kosmos_2_text_model", "kosmos_2_5_text_model")
#: How the names of families end that draft tokens for another model.
_DRAFTS = "_assistant"


def shape_of(name: str, *, revision: str | None = None, rope: RopeScaling | None = None) -> ModelShape:
    """The shape of the model that a job names, for a worker, whose model is on this machine
    already. Raises ModelError: it is no model, or none that can be trained."""
    try:
        return read_model(name, revision=revision, rope=rope)
    except stated.UnlistedFamilyError as error:
        data = config_of(name, offline=True, revision=revision)
        return scaled_shape(built_shape(error.data, file=error.file), rope, data)


def built_shape(data: dict[str, Any], *, file: str) -> ModelShape:
    """The shape of the model that transformers builds of a config.json called `file`. Raises
    ModelError: there is something in it that is not understood; says what."""
    stated.refuse_foreign(data, file=file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of keys that a configuration class does not know
            return replace(_Reading(data, file=file).shape(), published=stated.published_as(data))
    except UnsupportedError as error:
        kind = data.get("model_type")
        message = f"model_type {kind!r} has no row in the catalogue, and its build is not understood: {error}"
        raise ModelError.at(file, message) from None


class _Reading:
    """One model, built and watched once: of a model of more than text, the language model. `seen`:
    its forward, where that can be followed without numbers."""

    def __init__(self, data: dict[str, Any], *, file: str) -> None:
        self._storage, self._file = stated.storage_type(data, file=file), file
        config = config_from(data)
        self._config = text_config(config)
        self._data: dict[str, Any] = data if self._config is config else json.loads(self._config.to_json_string())
        if self._config is not config:
            if self._data.get("use_bidirectional_attention") is True:
                raise UnsupportedError("its language model lets tokens of a prompt see those after them")
            stated.refuse_foreign(self._data, file=f"{file}, text_config")
        with watchable():
            self._anatomy, self._wrapper = _built(config)
            self._known = known_shape(self._anatomy, self._data, dtype=self._storage) if self._wrapper else None
            self._seen = _watched(self._anatomy) if self._known is None else None

    def shape(self) -> ModelShape:
        """What is known of it. Raises UnsupportedError: it is no causal decoder."""
        shape = self._known or self._read(self._storage)
        if self._wrapper is None:
            return shape
        names = replace(shape.names, root=self._anatomy.backbone_name)
        plain = shape.plain_head and is_plain(self._anatomy, width=shape.embedding_width)
        eager = shape.eager_attention or not getattr(self._anatomy.model, "_supports_sdpa", False)
        shape = replace(shape, names=names, plain_head=plain, eager_attention=eager, wrapper=self._wrapper)
        return replace(shape, bare_experts=bare_experts_of(self._wrapper.family))

    def _read(self, storage: str) -> ModelShape:
        if self._seen is not None:
            try:
                return self._recognised(self._seen, storage)
            except UnsupportedError:  # by any part of it
                pass
        return generic_shape(self._anatomy, self._config, self._data, seen=self._seen, storage=storage)

    def _recognised(self, seen: Seen, storage: str) -> ModelShape:
        """What was seen, as a shape. Raises UnsupportedError: something is not understood."""
        anatomy = self._anatomy
        _refuse_unread(anatomy, seen)
        blocks = [read_block(block, seen) for block in seen.blocks]
        outside = read_outside(anatomy, seen)
        first = _alike(blocks)
        kinds = Counter((block.matrices, block.norms) for block in blocks).most_common()
        matrices, norms = kinds[0][0]
        windows, positions = Counter(block.window for block in blocks), self._positions()
        window, unstaged = _window(windows), why_unstaged(anatomy, seen)
        return ModelShape(
            family=self._data["model_type"],
            num_layers=len(blocks),
            hidden_size=first.width,
            intermediate_size=next(block.intermediate for block in blocks if block.matrices == matrices),
            num_attention_heads=first.heads,
            num_key_value_heads=first.key_value_heads,
            head_dim=first.head_dim,
            vocab_size=outside.vocabulary,
            max_position_embeddings=positions,
            matrices=matrices,
            norm_parameters_per_layer=sum(norm.num_parameters for norm in norms),
            final_norm_parameters=outside.final_norm_parameters,
            position_parameters=outside.position_parameters,
            mlp=first.mlp,
            norm=_only(frozenset[Any]().union(*(block.norm_kinds for block in blocks), outside.norm_kinds), "norms"),
            tied=anatomy.tied,
            head_bias=outside.head_bias,
            storage_dtype=storage,
            sliding_window=window,
            norms=norms,
            activation=first.activation,
            attention_softcap=first.capped,
            partial_rotary=first.copies_queries,
            scales_stream=hasattr(anatomy.backbone, "embedding_multiplier"),
            parallel_residual=first.parallel,
            plain_head=anatomy.plain_head and outside.plain_head,
            other_blocks=tuple(
                OtherBlocks(count=count, matrices=others, norms=normed) for (others, normed), count in kinds[1:]
            ),
            windowed_layers=windows[window] if window is not None and len(windows) > 1 else None,
            value_head_dim=None if first.value_head_dim == first.head_dim else first.value_head_dim,
            embedding_size=None if outside.embedding_width == first.width else outside.embedding_width,
            outer_norms=outside.outer_norms,
            names=outside.names,
            eager_attention=not getattr(anatomy.model, "_supports_sdpa", False),
            steady_positions=stated.steady_positions(self._data, positions=positions),
            layerdrop=float(getattr(self._config, "layerdrop", None) or 0.0),
            drops_out=drops_out(anatomy.model),
            drops_stream=stated.drops_stream(self._config.to_dict()),
            drops_scores=stated.drops_scores(self._config.to_dict()),
            built=(built := self._splits(seen, blocks, outside, staged=not unstaged)),
            unstaged=unstaged,
            unsliced="" if "slices" in built else why_whole(anatomy),
        )

    def _positions(self) -> int:
        found = getattr(self._config, "max_position_embeddings", None)
        if type(found) is not int or found < 1:
            raise UnsupportedError("its configuration does not say how many positions it has (max_position_embeddings)")
        return found

    def _splits(self, seen: Seen, blocks: list[Block], outside: Outside, *, staged: bool) -> tuple[Split, ...]:
        sliced = outside.ended and slices_alike(self._anatomy, seen, blocks)
        told = all(DOCUMENTS in attention_of(block).words for block in seen.blocks)
        found: dict[Split, bool] = {"stages": staged, "slices": sliced, "documents": told}
        return tuple(split for split, holds in found.items() if holds)


def seen_ends(config: Any) -> StageEnds:
    """What runs outside the blocks of the model that transformers builds of a configuration. Raises
    UnsupportedError: the model is not cut in stages; says why."""
    with watchable(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        anatomy, _ = _built(config)
        seen = _watched(anatomy)
    if seen is None:
        raise UnsupportedError(f"the forward of {config.model_type} cannot be followed without numbers; use fsdp")
    return read_ends(anatomy, seen)


def config_from(data: dict[str, Any]) -> Any:
    """transformers' configuration of the keys of a config.json. Raises UnsupportedError: it cannot
    be read, or is of no decoder."""
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
    except Exception as error:  # noqa: BLE001 - whatever a constructor raises, the model cannot be had
        raise UnsupportedError(f"transformers does not build it ({_how(error)})") from None
    wrapper = leave_language_model(model)
    if wrapper is None and any(part in config.sub_configs for part in _BESIDE_TEXT):
        raise UnsupportedError("it is a model of more than text, in which transformers has no language model by itself")
    try:
        return find_anatomy(model.eval()), wrapper
    except AttributeError as error:
        raise UnsupportedError(f"{type(model).__name__} is no language model with a list of blocks ({error})") from None


def _how(error: Exception) -> str:
    return f"{type(error).__name__}: {said(error)}"


def _watched(anatomy: Anatomy) -> Seen | None:
    """A forward as the trainer calls it, or else one that is told nothing of packed documents."""
    for packed in (True, False):
        try:
            return watch(anatomy, packed=packed)
        except Exception:  # noqa: BLE001, S112 - whatever a model's code raises where there are no numbers
            continue
    return None


def _refuse_unread(anatomy: Anatomy, seen: Seen) -> None:
    """Every parameter must belong to a matrix, a norm or an embedding that ran."""
    calls = [*seen.outside, *(call for block in seen.blocks for call in block.calls)]
    read = {id(parameter) for call in calls for parameter in call.module.parameters()}
    left = [name for name, parameter in anatomy.model.named_parameters() if id(parameter) not in read]
    bare = sorted({*left, *seen.bare})
    if bare:
        more = f" and {len(bare) - 3} more" if len(bare) > 3 else ""
        raise UnsupportedError(
            f"{', '.join(bare[:3])}{more} belong to no matrix, norm or embedding that a forward was seen to run"
        )
    held = Counter(id(p) for module in {id(c.module): c.module for c in calls}.values() for p in module.parameters())
    shared = [n for n, p in anatomy.model.named_parameters() if held[id(p)] > 1 and p is not anatomy.embedding.weight]
    if shared:
        raise UnsupportedError(f"{', '.join(shared[:3])} is shared by several modules")


def _alike(blocks: list[Block]) -> Block:
    """The first block; in what a shape says once, all others are like it."""
    parts = ("width", "heads", "key_value_heads", "head_dim", "value_head_dim", "capped", "copies_queries", "parallel")
    for part in (*parts, "mlp", "activation"):
        found = {getattr(block, part) for block in blocks}
        if len(found) > 1:
            raise UnsupportedError(f"its blocks differ in {part.replace('_', ' ')}: {sorted(map(str, found))}")
    return blocks[0]


def _only(found: frozenset[Any], what: str) -> Any:
    if len(found) != 1:
        raise UnsupportedError(f"its {what} are of {len(found)} kinds ({', '.join(sorted(found))}); one is known")
    return next(iter(found))


def _window(windows: Counter[int | None]) -> int | None:
    widths = sorted(width for width in windows if width is not None)
    if len(widths) > 1:
        raise UnsupportedError(f"its blocks have windows of {', '.join(map(str, widths))} tokens; one is known")
    return widths[0] if widths else None
