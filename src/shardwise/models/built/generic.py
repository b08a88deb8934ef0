"""The shape of a built decoder: exact counts from its module tree, and from its configuration the
numbers that a forecast is told once for all blocks.

How its blocks split is said as far as one forward without numbers, where the model's code has one,
was seen to go.
"""

from collections import Counter
from typing import Any, cast

from torch import nn

from shardwise.catalog.config import ACTIVATIONS
from shardwise.catalog.stated import POSITIONS, dropped, steady_positions
from shardwise.errors import UnsupportedError
from shardwise.models.anatomy import Anatomy, drops_out
from shardwise.models.built.head import is_plain
from shardwise.models.built.splits import ends_or_why, holders, plan_of, slices
from shardwise.models.built.tree import CountedParameters, Tree
from shardwise.models.built.watch import DOCUMENTS, Seen
from shardwise.models.stage import final_norm
from shardwise.spec.model.profile import WINDOWS
from shardwise.spec.model.shape import ModelShape, OtherBlocks, OuterNames, Split

#: Positions of a model whose configuration states none: it has no table and no trained length.
_UNBOUNDED = 1_048_576

#: Keys of caps on logits.
_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
#: Operators by which tokens meet elsewhere than in attention that transformers runs by name.
_MIXING = frozenset({"convolution", "cumsum", "cumprod", "logcumsumexp", "roll"})


class BuiltDecoder:
    """A built model. `seen`: a forward of it, where it could be followed."""

    def __init__(self, anatomy: Anatomy, config: Any, data: dict[str, Any], seen: Seen | None) -> None:
        self._anatomy, self._data, self._seen, self._config = anatomy, data, seen, config
        self._calls = seen.blocks if seen is not None else []
        self._stated: dict[str, Any] = config.to_dict()
        self._tree = Tree(self._stated, plan_of(config) or {})
        self._ends_seen, self._unstaged = ends_or_why(anatomy, seen)

    def shape(self, storage: str) -> ModelShape:
        """Its shape. Raises UnsupportedError: no causal decoder, or a head of another embedding."""
        attention = (call for block in self._calls for call in block.attention)
        if any(call.mask is not None and not call.mask.causal for call in attention):
            raise UnsupportedError("its attention is not causal: a token may see those after it, or none (window 0)")
        if "keep_window_size" in self._stated:
            raise UnsupportedError("its code chooses the keys of a token among those after it too, so it is not causal")
        width, head = self._ends()
        blocks = [self._tree.parts(block) for block in self._anatomy.blocks]
        final, outer = self._outside(self._hidden(blocks))
        (usual, _), *others = Counter(blocks).most_common()
        kinds = [usual, *(other for other, _ in others)]
        heads = self._number("num_attention_heads", "n_head", "n_heads", "num_heads") or 1
        hidden, window = self._hidden(blocks), self._number(*WINDOWS)
        positions = self._number(*POSITIONS) or _UNBOUNDED
        stated, names = self._stated, {id(module): name for name, module in self._anatomy.model.named_modules()}
        _, drops_stream, drops_scores = dropped(stated)
        activation = stated.get("hidden_act")
        gated = sum(matrix.reads == "mlp_input" for matrix in usual.matrices) != 1
        return ModelShape(
            family=self._data["model_type"],
            num_layers=len(blocks),
            hidden_size=hidden,
            intermediate_size=self._number("intermediate_size", "ffn_dim", "n_inner") or 4 * hidden,
            num_attention_heads=heads,
            num_key_value_heads=self._number("num_key_value_heads") or heads,
            head_dim=self._number("head_dim", "qk_head_dim") or max(1, hidden // heads),
            vocab_size=self._anatomy.embedding.get_parameter("weight").shape[0],
            max_position_embeddings=positions,
            matrices=usual.matrices,
            norm_parameters_per_layer=sum(norm.num_parameters for norm in usual.norms),
            final_norm_parameters=0 if final is None else sum(p.numel() for p in final.parameters()),
            mlp="gated" if gated else "plain",
            tied=self._anatomy.tied,
            head_bias=head,
            storage_dtype=storage,
            sliding_window=window,
            norms=usual.norms,
            activation=activation if activation in ACTIVATIONS else "silu",
            attention_softcap=stated.get("attn_logit_softcapping") is not None,
            scales_stream=hasattr(self._anatomy.backbone, "embedding_multiplier"),
            behind=self._behind(outer),
            plain_head=self._anatomy.plain_head and is_plain(self._anatomy, width=width),
            caps_logits=any(stated.get(key) is not None for key in _CAPS),
            other_blocks=tuple(
                OtherBlocks(count=count, matrices=other.matrices, norms=other.norms) for other, count in others
            ),
            kind_of_block=tuple(map(kinds.index, blocks)) if others else (),
            windowed_layers=self._windowed(len(blocks)) if window else None,
            value_head_dim=self._number("v_head_dim"),
            embedding_size=None if width == hidden else width,
            outer_matrices=outer.matrices,
            outer_norms=outer.norms,
            names=OuterNames(
                embedding=names[id(self._anatomy.embedding)],
                head=names[id(self._anatomy.head)],
                final_norm=None if final is None else names[id(final)],
                blocks=names[id(self._anatomy.blocks)],
            ),
            eager_attention=not getattr(self._anatomy.model, "_supports_sdpa", False),
            steady_positions=steady_positions(self._data, positions=positions),
            layerdrop=float(stated.get("layerdrop") or 0.0),
            drops_out=drops_out(self._anatomy.model),
            drops_stream=drops_stream,
            drops_scores=drops_scores,
            bare_experts=bare_experts_of(self._data["model_type"]),
            mixes_documents=not self._keeps_documents_apart(),
            counted=True,
            shares_weights=any(count > 1 for count in holders(self._anatomy.blocks).values()),
            runs_twice=any(count > 1 for call in self._calls for count in call.ran.values()),
            built=(built := self._splits()),
            passed=self._passed(hidden),
            unstaged=self._unstaged,
            unsliced="" if "slices" in built else "transformers has no tensor parallel plan of its blocks",
        )

    def _ends(self) -> tuple[int, bool]:
        """The embedding's width, and whether the head has a bias; both are counted."""
        embedding, head = self._anatomy.embedding.get_parameter("weight"), self._anatomy.head.get_parameter("weight")
        if head.shape != embedding.shape or not head.numel():
            shapes = f"its head is {tuple(head.shape)} and its embedding {tuple(embedding.shape)}"
            raise UnsupportedError(f"{shapes}, and heads of another size are not trained")
        bias = getattr(self._anatomy.head, "bias", None)
        for parameter in (embedding, head, bias):
            if parameter is not None:
                self._tree.skip(parameter)
        return embedding.shape[1], bias is not None

    def _outside(self, hidden: int) -> tuple[nn.Module | None, CountedParameters]:
        """The final norm, and what else lies outside; by names below the backbone."""
        final = final_norm(self._anatomy, width=hidden)
        for parameter in final.parameters() if final is not None else ():
            self._tree.skip(parameter)
        inside = self._tree.parts(self._anatomy.backbone)
        beside = self._tree.parts(self._anatomy.model)
        return final, CountedParameters(matrices=inside.matrices + beside.matrices, norms=inside.norms + beside.norms)

    def _hidden(self, blocks: list[CountedParameters]) -> int:
        found = self._number("hidden_size", "d_model", "n_embd", "dim")
        return found or max(norm.size for block in blocks for norm in block.norms)

    def _number(self, *keys: str) -> int | None:
        """A whole number that is stated, by the first name that it has; of a list the largest."""
        for key in keys:
            value: Any = self._stated.get(key, self._stated.get(self._config.attribute_map.get(key, "")))
            of_layers = cast(list[Any], value) if isinstance(value, list | tuple) else [value]
            wholes = [one for one in of_layers if type(one) is int and one > 0]
            if wholes:
                return max(wholes)
        return None

    def _windowed(self, layers: int) -> int | None:
        kinds = self._stated.get("layer_types")
        if not isinstance(kinds, list):
            return None
        windowed = sum(str(kind).startswith(("sliding", "chunked")) for kind in cast(list[Any], kinds)[:layers])
        return windowed if 0 < windowed < layers else None

    def _keeps_documents_apart(self) -> bool:
        """Whether packed documents never meet: blocks have attention, and it alone joins tokens."""
        return bool(self._calls) and all(
            block.attention
            and all(call.mask is not None and call.mask.by_positions for call in block.attention)
            and not _MIXING & block.ops
            for block in self._calls
        )

    def _passed(self, hidden: int) -> tuple[int, ...]:
        sent = [sum(one.width for one in several) for several in self._ends_seen.passed]
        return tuple(sent) if any(width != hidden for width in sent) else ()

    def _splits(self) -> tuple[Split, ...]:
        found: list[Split] = []
        if not self._unstaged:
            found.append("stages")
        found += slices(self._anatomy, self._seen)
        told = all(DOCUMENTS in call.words for block in self._calls for call in block.attention)
        if told and self._keeps_documents_apart():
            found.append("documents")
        return tuple(found)

    def _behind(self, outer: CountedParameters) -> tuple[str, ...]:
        """Names of the parts outside that run behind the blocks."""
        ran = {} if self._seen is None else self._seen.ran_outside
        behind = {name for name, blocks in ran.items() if blocks}
        prefix = self._anatomy.model.base_model_prefix
        names = (part.name for part in (*outer.matrices, *outer.norms))
        return tuple(name for name in names if {name, f"{prefix}.{name}"} & behind)


def bare_experts_of(kind: str) -> str | None:
    """By whose names PEFT knows the stacked experts of a family."""
    from transformers.conversion_mapping import _MODEL_TO_CONVERSION_PATTERN

    found = {**_MODEL_TO_CONVERSION_PATTERN, "mixtral": "mixtral"}.get(kind)  # as PEFT has it
    if found is None:
        return None  # PEFT takes seconds to import
    from peft.utils.transformers_weight_conversion import _MOE_TARGET_MODULE_MAPPING

    return found if found in _MOE_TARGET_MODULE_MAPPING else None
