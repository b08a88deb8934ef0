"""ModelShape: the numbers of a causal language model that memory and time depend on."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

from shardwise.spec.job.strict import from_plain
from shardwise.spec.model.profile import ModelProfile

MlpKind = Literal["gated", "plain"]
#: `gemma` is an RMS norm that multiplies by its weight in float32, before it rounds; `centred` one
#: that takes the mean away before, written out.
NormKind = Literal["rms", "layer", "gemma", "centred"]
#: How blocks are split: over pipeline stages, by tensor parallel, or attention by packed documents.
Split = Literal["stages", "slices", "whole_stream", "documents"]
#: The tensors of a block that its matrices read; those that read the same one can share what is
#: kept of it. What is not known of a block is `other`.
Reads = (
    Literal["attention_input", "attention_output", "mlp_input", "mlp_product"]
    | Literal["expert_input", "expert_product", "query_latent", "key_value_latent", "other"]
)
#: A dim of a matrix, or of a stack of them.
Cut = Literal["rows", "columns", "count"]
#: What weights may be published in, beside floats: widened while read (`models/published.py`).
Published = Literal["mxfp4", "fp8"]
#: Bytes of an element and its share of a scale: blocks of 32 with one byte; of 128 x 128 with four.
_PUBLISHED_BYTES: dict[Published, float] = {"mxfp4": 0.5 + 1 / 32, "fp8": 1 + 4 / 128**2}
#: What tensor parallelism slices of a matrix: what reads the residual stream (or what was made of
#: it) gives a slice of the heads or of the MLP's width, and what reads such a slice gives a summand
#: of the whole. So a block needs one sum over ranks after attention and one after the MLP (Shoeybi
#: et al., 2019).
_WHOLE: tuple[Reads, ...] = ("attention_input", "query_latent", "key_value_latent", "mlp_input", "expert_input")
_IN_SLICES: tuple[Reads, ...] = ("attention_output", "mlp_product", "expert_product")
SLICED_BY: dict[Reads, Cut] = {**dict.fromkeys(_WHOLE, "rows"), **dict.fromkeys(_IN_SLICES, "columns")}


@dataclass(frozen=True)
class Matrix:
    """One linear layer of a block.

    Attributes:
        name: its name inside the block, as in the Hugging Face module tree: `self_attn.q_proj`.
        rows: output features.
        columns: input features.
        bias: whether it has a bias of `rows` elements.
        count: how many alike stand in one block (experts).
        reads: which tensor of the block is its input.
        transposed: the weight is stored as (columns, rows), as GPT-2's are.
        stacked: all `count` of them are one parameter, whose first dim counts them.
        adaptable: it is a module of its own, on which an adapter can hang; routers and stacked
            experts are not.
        active: of `count` experts, those a token is routed to; None for all.
        runs_all: the implementation runs a token through all `count` of them, whatever its route.
        whole: tensor parallelism does not slice it, for transformers' plan of the model leaves it
            out.
    """

    name: str
    rows: int
    columns: int
    bias: bool = False
    count: int = 1
    reads: Reads = "attention_input"
    transposed: bool = False
    stacked: bool = False
    adaptable: bool = True
    active: int | None = None
    runs_all: bool = False
    whole: bool = False

    @property
    def num_parameters(self) -> int:
        """Weight and bias elements of all `count` matrices."""
        return self.count * (self.rows * self.columns + (self.rows if self.bias else 0))

    @property
    def sliced_by(self) -> Cut | None:
        """What tensor parallelism slices of it; None for what stays whole: routers, and the way
        into a latent. Stacked experts are dealt, each of them whole."""
        if self.whole or self.stacked:
            return None if self.whole else "count"
        is_router = not self.adaptable or self.rows == 1
        return None if is_router or "_a_proj" in self.name else SLICED_BY.get(self.reads)

    @property
    def routed(self) -> int:
        """How many of the `count` a token's route goes through."""
        return self.count if self.active is None else self.active

    @property
    def run(self) -> int:
        """How many of the `count` a token is multiplied with in fact."""
        return self.count if self.runs_all else self.routed


@dataclass(frozen=True)
class Norm:
    """One normalisation of a block. `size`: elements of its weight, 0: none. `width`: elements per
    token it normalises; a norm of each head has a small weight and a wide input. `bias`: it has a
    bias of `size` too. `count`: how many alike it stands for, which share `width`. `frozen`: a
    parameter of transformers that is never trained, as some routers' correction biases."""

    name: str
    size: int
    width: int
    bias: bool = False
    count: int = 1
    frozen: bool = False

    @property
    def num_parameters(self) -> int:
        """Weight and bias elements of all `count` norms."""
        return self.count * self.size * (2 if self.bias else 1)

    @property
    def groups(self) -> float:
        """Means or variances it takes of one token: one for each stretch as long as its weight."""
        return self.width / self.size if self.size else 1


@dataclass(frozen=True, kw_only=True)
class OtherBlocks:
    """The blocks of one kind, in a model whose blocks differ. `count`: how many of the model's
    blocks are of this kind; `matrices`, `norms`: as in ModelShape."""

    count: int
    matrices: tuple[Matrix, ...]
    norms: tuple[Norm, ...]


@dataclass(frozen=True, kw_only=True)
class OuterNames:
    """Names of modules outside the blocks, in the Hugging Face module tree; defaults: Llama's.
    None: no such module. `root`: of the backbone, if it is no child of the whole model."""

    embedding: str = "model.embed_tokens"
    head: str = "lm_head"
    final_norm: str | None = "model.norm"
    blocks: str = "model.layers"
    positions: str | None = None
    root: str = ""

    @property
    def backbone(self) -> str:
        """The module around all of them but the head."""
        return self.root or self.blocks.partition(".")[0]

    def inside(self, root: str, *, head: str) -> Self:
        """These names in a model of more than text, with language model `root` and head `head`."""

        def moved(name: str | None) -> str | None:
            return None if name is None else f"{root}{name.removeprefix(self.backbone)}"

        places = {key: moved(getattr(self, key)) for key in ("final_norm", "positions")}
        embedding, blocks = f"{moved(self.embedding)}", f"{moved(self.blocks)}"
        return replace(self, **places, embedding=embedding, blocks=blocks, head=head, root=root)  # pyright: ignore


LLAMA_NAMES = OuterNames()


@dataclass(frozen=True, kw_only=True)
class Wrapper:
    """A model of more than text; its language model is trained. `family`: config.json's
    `model_type`; `frozen_parameters`: of other parts (towers, projectors), on disk, or None."""

    family: str
    frozen_parameters: int | None = None


#: What plan.json says of builds alone, and where there is something to say.
OF_BUILDS = ("kind_of_block", "passed", "runs_twice")


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder as the planner sees it.

    Attributes:
        family: `model_type` of config.json.
        matrices: the linear layers of one block, in order of execution; of the usual kind where
            blocks differ.
        norm_parameters_per_layer: elements of the norms inside one block.
        final_norm_parameters: elements of the norm before the head.
        position_parameters: elements of a learned position table, 0 for rotary models.
        head_bias: the head has a bias of `vocab_size` elements.
        storage_dtype: the type the weights are stored in, as in config.json: `bfloat16`, `float32`.
        sliding_window: attention window in tokens, or None.
        norms: the norms inside one block; their parameters add up to `norm_parameters_per_layer`.
        activation: the MLP's activation function, in transformers' words.
        attention_softcap: attention scores are capped, which SDPA cannot do.
        partial_rotary: queries and keys are rotated in part and joined again, which changes their
            memory layout.
        scales_stream: its code multiplies what the first block of a pipeline stage gets, embedded
            or received.
        parallel_residual: attention and the MLP read the same residual stream.
        plain_head: logits are the head's output, with no cap or scale behind it.
        caps_logits: a hyperbolic tangent is behind it.
        other_blocks: the blocks that are not of the usual kind.
        kind_of_block: which of the `kinds` each block of a build is; empty where there is one, or
            where they are taken as spread evenly over the depth.
        windowed_layers: how many blocks' attention has the window, None for all.
        value_head_dim: width of a head's values where it is not `head_dim`.
        embedding_size: width of the embedding and the head where it is not `hidden_size`.
        outer_matrices, outer_norms: outside the blocks, beside the head and the final norm.
        behind: names of those of them that run behind the blocks.
        names: of the modules outside the blocks; of a plan that is older than they are, Llama's.
        eager_attention: the family's code has no other attention than the one written out.
        steady_positions: up to which length rotary frequencies do not follow the longest sequence;
            None for any.
        layerdrop: chance of a block to be left out of a forward while training, where the family's
            code does that.
        drops_out: its code drops something out at random in training.
        drops_stream, drops_scores: it does so of what attention and the MLP add to the stream, and
            of attention's scores.
        counts_routes: its loss has a part for even use of experts, for which a step counts routes
            by one more forward.
        bare_experts: whose names for experts PEFT takes for bare parameters (`spec.adapters`);
            None: it does not.
        published: in which fewer bits its weights lie in files, of which reading makes the storage
            type; None: in none.
        mixes_documents: packed documents see each other in its code, or are not known to be kept
            apart.
        counted: its blocks, read off a build, are not like those of the catalogue: no rules
            forecast what they keep.
        profiles: what one of each kind of its blocks was measured to keep, for executions of a job.
        shares_weights: some of its blocks are, in part, one and the same.
        runs_twice: a block of a build multiplies by some weight twice.
        built: how its blocks were seen to split, where the shape was read off a build; None: the
            catalogue says it.
        passed: for each block of a build, elements of a token in what a pipeline stage that begins
            with it is sent; empty where that is the residual stream alone.
        unstaged: why a build is not cut in stages; "" where it is, or where that is not known.
        unsliced: why tensor parallelism does not slice a build; likewise.
        untrained: why its code does not run, or its weights are not read; "" elsewhere.
        wrapper: the model of text and images, or sound, that it is the language model of; None
            where it is the whole.
    """

    family: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    matrices: tuple[Matrix, ...]
    norm_parameters_per_layer: int
    final_norm_parameters: int
    position_parameters: int = 0
    mlp: MlpKind = "gated"
    norm: NormKind = "rms"
    tied: bool = False
    head_bias: bool = False
    storage_dtype: str = "float32"
    sliding_window: int | None = None
    norms: tuple[Norm, ...] = ()
    activation: str = "silu"
    attention_softcap: bool = False
    partial_rotary: bool = False
    scales_stream: bool = False
    parallel_residual: bool = False
    plain_head: bool = True
    caps_logits: bool = False
    other_blocks: tuple[OtherBlocks, ...] = ()
    kind_of_block: tuple[int, ...] = ()
    windowed_layers: int | None = None
    value_head_dim: int | None = None
    embedding_size: int | None = None
    outer_matrices: tuple[Matrix, ...] = ()
    outer_norms: tuple[Norm, ...] = ()
    behind: tuple[str, ...] = ()
    names: OuterNames = LLAMA_NAMES
    eager_attention: bool = False
    steady_positions: int | None = None
    layerdrop: float = 0.0
    drops_out: bool = False
    drops_stream: bool = False
    drops_scores: bool = False
    counts_routes: bool = False
    bare_experts: str | None = None
    published: Published | None = None
    mixes_documents: bool = False
    counted: bool = False
    profiles: tuple[ModelProfile, ...] = ()
    shares_weights: bool = False
    runs_twice: bool = False
    built: tuple[Split, ...] | None = None
    passed: tuple[int, ...] = ()
    unstaged: str = ""
    unsliced: str = ""
    untrained: str = ""
    wrapper: Wrapper | None = None

    @property
    def embedding_width(self) -> int:
        """Elements of one token's embedding, and of what the head reads."""
        return self.embedding_size or self.hidden_size

    @property
    def embedding_parameters(self) -> int:
        """Elements of the token embedding."""
        return self.vocab_size * self.embedding_width

    @property
    def head_parameters(self) -> int:
        """Elements the head adds; a tied head adds none but its bias."""
        weight = 0 if self.tied else self.embedding_parameters
        return weight + (self.vocab_size if self.head_bias else 0)

    @cached_property
    def multiplied_elements(self) -> int:
        """Of all blocks, elements of matrices that each token is multiplied with."""
        return sum(blocks * m.routed * m.rows * m.columns for blocks, m in self.every_matrix)

    @cached_property
    def block_parameters(self) -> int:
        """Elements of all blocks."""
        blocks = ((kind, sum(matrix.num_parameters for matrix in kind.matrices)) for kind in self.kinds)
        return sum(kind.num_layers * (elements + kind.norm_parameters_per_layer) for kind, elements in blocks)

    @cached_property
    def costs_of_stages(self) -> tuple[float, float, float]:
        """What a pipeline stage costs: for each block, and beside them the first and the last one.
        Whole numbers, twice as large and as many times as there are blocks: none is rounded."""
        block, head = self.multiplied_elements + self.block_parameters, 2 * self.embedding_parameters
        return block, self.num_layers * (self.embedding_parameters + self.position_parameters), self.num_layers * head

    def message(self, first: int) -> int:
        """Elements of a token in what a pipeline stage is sent whose `first` block is that one."""
        return self.passed[first] if 0 < first < len(self.passed) else self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All elements, shared ones counted once."""
        ends = self.embedding_parameters + self.head_parameters + self.position_parameters + self.final_norm_parameters
        beside = sum(one.num_parameters for one in (*self.outer_matrices, *self.outer_norms))
        return self.block_parameters + ends + beside

    @property
    def published_bytes(self) -> float:
        """Of all weights in files. Quantized: block matrices, not routers; mxfp4: experts alone."""
        if self.published is None:
            return self.num_parameters * (4 if self.storage_dtype == "float32" else 2)
        narrow = [(n, m) for n, m in self.every_matrix if m.stacked or (m.adaptable and self.published == "fp8")]
        few = sum(blocks * m.count * m.rows * m.columns for blocks, m in narrow)
        return few * _PUBLISHED_BYTES[self.published] + 2 * (self.num_parameters - few)

    @cached_property
    def mlp_width(self) -> int:
        """Intermediate elements of one token in the usual block, summed over its experts."""
        products = ("mlp_product", "expert_product")
        return sum(m.columns * m.run for m in self.matrices if m.reads in products) or self.intermediate_size

    @cached_property
    def has_experts(self) -> bool:
        """Whether some block routes tokens to experts."""
        return any(matrix.active is not None for kind in self.kinds for matrix in kind.matrices)

    @property
    def every_matrix(self) -> Iterator[tuple[int, Matrix]]:
        """The matrices of one block of each kind, each with the number of its blocks."""
        return ((kind.num_layers, matrix) for kind in self.kinds for matrix in kind.matrices)

    @cached_property
    def sliced(self) -> list[Matrix]:
        """The matrices of each kind of block that tensor parallelism slices."""
        return [matrix for _, matrix in self.every_matrix if matrix.sliced_by is not None]

    @cached_property
    def kinds(self) -> tuple[Self, ...]:
        """One shape for each kind of block, the usual first, as if the model had that kind only."""
        if not self.other_blocks:
            return (self,)
        usual = self.num_layers - sum(other.count for other in self.other_blocks)
        found = [replace(self, num_layers=usual, other_blocks=())]
        for other in self.other_blocks:
            norms = sum(norm.num_parameters for norm in other.norms)
            kind = replace(found[0], num_layers=other.count, matrices=other.matrices, norms=other.norms)
            found.append(replace(kind, norm_parameters_per_layer=norms))
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Plain data for plan.json; what says nothing of reasons and `OF_BUILDS` is left out."""
        said = {key: value for key, value in asdict(self).items() if value or (value != "" and key not in OF_BUILDS)}
        return {**said, "num_parameters": self.num_parameters}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The shape that `to_json` wrote; keys that are not the shape's are passed over. Raises
        TypeError: the data was written by hand or by another version."""
        return from_plain(cls, data)
