"""ModelShape: the numbers of a causal language model that memory and time depend on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

MlpKind = Literal["gated", "plain"]
#: `gemma` is an RMS norm that multiplies by its weight in float32, before it rounds.
NormKind = Literal["rms", "layer", "gemma"]
#: The tensors of a block that its matrices read; matrices that read the same one can share what is kept of it.
Reads = Literal["attention_input", "attention_output", "mlp_input", "mlp_product"]


@dataclass(frozen=True, kw_only=True)
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
    """

    name: str
    rows: int
    columns: int
    bias: bool = False
    count: int = 1
    reads: Reads = "attention_input"
    transposed: bool = False

    @property
    def num_parameters(self) -> int:
        """Weight and bias elements of all `count` matrices."""
        return self.count * (self.rows * self.columns + (self.rows if self.bias else 0))


@dataclass(frozen=True, kw_only=True)
class Norm:
    """One normalisation of a block.

    Attributes:
        size: elements of its weight.
        width: elements per token that it normalises; a norm of each head has a small weight and a wide input.
        bias: it has a bias of `size` elements too.
        count: how many alike it stands for, which share the `width` between them.
    """

    name: str
    size: int
    width: int
    bias: bool = False
    count: int = 1

    @property
    def num_parameters(self) -> int:
        """Weight and bias elements of all `count` norms."""
        return self.count * self.size * (2 if self.bias else 1)


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder as the planner sees it.

    Attributes:
        family: `model_type` of config.json.
        matrices: the linear layers of one block, in order of execution.
        norm_parameters_per_layer: elements of the norms inside one block.
        final_norm_parameters: elements of the norm before the head.
        position_parameters: elements of a learned position table, 0 for rotary models.
        tied: the head shares the embedding's storage.
        head_bias: the head has a bias of `vocab_size` elements.
        storage_dtype: the type the weights are stored in, as in config.json: `bfloat16`, `float32`.
        sliding_window: attention window in tokens, or None.
        norms: the norms inside one block; their parameters add up to `norm_parameters_per_layer`.
        activation: the MLP's activation function, in transformers' words.
        attention_softcap: attention scores are capped, which SDPA cannot do.
        partial_rotary: queries and keys are rotated in part and joined again, which changes their memory layout.
        parallel_residual: attention and the MLP read the same residual stream.
        plain_head: logits are the head's output, with no cap or scale behind it.
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
    parallel_residual: bool = False
    plain_head: bool = True

    @property
    def embedding_parameters(self) -> int:
        """Elements of the token embedding."""
        return self.vocab_size * self.hidden_size

    @property
    def head_parameters(self) -> int:
        """Elements the head adds; a tied head adds none but its bias."""
        weight = 0 if self.tied else self.embedding_parameters
        return weight + (self.vocab_size if self.head_bias else 0)

    @property
    def layer_parameters(self) -> int:
        """Elements of one block."""
        return sum(matrix.num_parameters for matrix in self.matrices) + self.norm_parameters_per_layer

    @property
    def num_parameters(self) -> int:
        """All elements, shared ones counted once."""
        outside = (
            self.embedding_parameters + self.head_parameters + self.position_parameters + self.final_norm_parameters
        )
        return self.num_layers * self.layer_parameters + outside

    def to_json(self) -> dict[str, Any]:
        """Plain data for plan.json."""
        return {**asdict(self), "num_parameters": self.num_parameters}
