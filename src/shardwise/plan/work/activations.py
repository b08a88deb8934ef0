"""What one block saves for backward, by operator, as autograd keeps it for transformers' code.

Tests compare the sums with what `saved_tensors_hooks` sees, family by family. Three rules explain
most of it: a product keeps its input only if its weight (or an adapter) is trained; matrices that
read one tensor keep it once, unless it is cast for each anew; a norm keeps its input in float32.

Compiled, the partitioner of AOTAutograd keeps what is computed by products and attention, and what
they read, each once and in the compute type; what lies between is computed again, inside kernels
(`min_cut_rematerialization_partition`).

Under tensor parallelism the model given is that of one rank (`parts.sliced_shape`); between
matrices the stream is cut along the sequence.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from shardwise.plan.work.inventory import Inventory
from shardwise.plan.work.tensors import FLOAT32_BYTES, DtypeBytes
from shardwise.spec.layout.execution import Attention, Recompute
from shardwise.spec.model.shape import Matrix, ModelShape, Norm, Reads
from shardwise.spec.support.attention import KEPT_BY_SELECTIVE
from shardwise.spec.support.splits import LAST_NORMS, parts_of_stream

#: What the activation function saves: copies of its input's size. `gelu_new` is written in Python.
_ACTIVATION_COPIES = {"gelu_new": 4, "gelu_fast": 4}

#: How often such a block applies dropout to the stream: the outputs of attention and of the MLP.
_BLOCK_DROPOUTS = 2

#: Tensors of the MLP's width for each of its first matrices that the kernel works on which inductor
#: writes for the gradients inside a compiled MLP: what the matrix gave, its gradient, and the
#: product or its gradient. With recompute and adapters it is one more or less; `margins.DOUBT`
#: covers that.
FUSED_MLP_TENSORS = 3

#: Names of norms that read a block's input.
_FIRST_NORMS = ("input_layernorm", "ln_1", "norms")


@dataclass(frozen=True, kw_only=True)
class BlockSetting:
    """What the bytes of a block depend on beside the model.

    Attributes:
        sharded: weights are gathered in the compute type, so that nothing is cast as it is used.
        masked: attention gets a mask (packed documents, or a window shorter than the sequence).
        compiled: whether blocks are.
        tiled: their MLPs are computed in tiles, of which nothing stays but what the MLP reads.
        dropout, stream_dropout, score_dropout: of adapters; and of the model's own what its shape
            says.
        cuda: on a GPU autocast runs layer norms in float32.
    """

    inventory: Inventory
    types: DtypeBytes
    sharded: bool
    masked: bool
    attention: Attention
    length: int
    dropout: bool = False
    stream_dropout: bool = False
    score_dropout: bool = False
    tp: int = 1
    in_parts: bool = False
    compiled: bool = False
    tiled: bool = False
    cuda: bool = True

    @property
    def tiles_norms(self) -> bool:
        """Whether norms are computed in tiles too, and keep what they read."""
        return self.tiled and not self.compiled

    @property
    def layer_norm_bytes(self) -> int:
        """Bytes per element of what a layer norm reads and writes."""
        return FLOAT32_BYTES if self.types.autocasts and self.cuda else self.types.compute

    @property
    def adapter_bytes(self) -> int:
        """Bytes per element of what PEFT computes with adapters: DoRA's norms in their type."""
        return self.types.trainable if self.casts and self.inventory.dora else self.types.compute

    @property
    def widens(self) -> bool:
        """Whether PEFT hands each adapter a copy of its input in the adapters' type."""
        return self.adapter_bytes != self.types.compute

    @property
    def casts(self) -> bool:
        """Whether autocast casts trained weights and what meets them."""
        return self.types.autocasts and not self.sharded


def block_input_bytes(model: ModelShape, setting: BlockSetting) -> float:
    """Bytes per token of the residual stream."""
    return model.hidden_size * setting.types.compute / parts_of_stream(model, setting.tp)


def saved_bytes(model: ModelShape, setting: BlockSetting, *, recompute: Recompute) -> float:
    """Bytes per token that a block keeps from its forward to its backward."""
    if recompute == "none":
        return everything_bytes(model, setting) - _inputs(model, setting, _made_again_inside(model, setting))
    return sum(saved_under_recompute(model, setting, recompute))


def backward_bytes(model: ModelShape, setting: BlockSetting) -> tuple[float, float, float]:
    """Bytes per token of gradients in a block's backward, above what it saved: of the residual
    stream, throughout; beside these of the product that the MLP's last matrix reads, while that
    matrix is at work; then of the product and its factors, less the product itself."""
    c, wide = setting.types.compute, model.mlp_width
    # Under tensor parallelism the gradient of the output of the MLP's sum is gathered in full.
    stream = block_input_bytes(model, setting) + (model.hidden_size * c if setting.tp > 1 else 0)
    if setting.widens and any(m.reads == "mlp_product" and m.name in setting.inventory.adapted for m in model.matrices):
        # PEFT gives the adapter a float32 copy: gradients in both types, and the frozen matrix's.
        widened = (2 * c + FLOAT32_BYTES) * wide
        return stream, widened, widened
    # PEFT sums the gradients that the frozen matrix and the adapter make of what they read.
    summands = 2 if any(m.reads == "mlp_product" for m in adapted_apart(model, setting)) else 1
    gradients = 3 * wide * c if model.mlp == "gated" else 2 * wide * c
    product = 0.0
    for reads in ("mlp_product", "expert_product"):
        kept = [m for m in model.matrices if m.reads == reads and keeps_input(m, setting)]
        product += kept[0].columns * _copies(kept[0]) * c if kept else 0.0
    return stream, summands * wide * c, max(gradients - product, 0.0)


def cut_backward_bytes(model: ModelShape, setting: BlockSetting) -> float:
    """Bytes per token that a block's backward of inputs leaves for that of weights: the gradient of
    what each trained matrix, adapter or norm gave."""
    inventory, wide = setting.inventory, 0.0
    for matrix in model.matrices:
        if inventory.trained(matrix.name) or matrix.name in inventory.adapted:
            wide += (matrix.rows + _rank(matrix.name, setting)) * matrix.run
    norms = sum(norm.width for norm in model.norms if norm.size and inventory.trained(norm.name))
    # What a root-mean-square norm gave has its weight's type, which is not cast.
    normed = setting.types.trainable if setting.casts and model.norm != "layer" else setting.layer_norm_bytes
    return wide * setting.types.compute + norms * normed


def ends_with_norm(model: ModelShape) -> bool:
    """Whether a block adds to the stream what a norm made of its MLP's result."""
    return any(norm.name.endswith(LAST_NORMS) for norm in _norms(model))


def reads_in_place(model: ModelShape, setting: BlockSetting) -> bool:
    """Whether a block keeps its input as it comes in, with no copy: its first norm saves that."""
    first = _norms(model)[0]
    if first.width != model.hidden_size:
        return False
    if not first.name.endswith(_FIRST_NORMS):
        return any(keeps_input(m, setting) for m in model.matrices if m.reads == "attention_input")
    if setting.tiles_norms:
        return True
    if model.norm == "layer":
        return bool(first.size) and setting.layer_norm_bytes == setting.types.compute
    return setting.compiled or setting.types.compute == FLOAT32_BYTES


def norm_backward_bytes(model: ModelShape, setting: BlockSetting) -> float:
    """Bytes per token in the backward of a norm after a block's MLP: float32 of the stream's width
    for the incoming gradient, both factors of the norm, and the gradient of what it squared."""
    normed = ends_with_norm(model) and not setting.tiles_norms
    return 5 * FLOAT32_BYTES * model.hidden_size / setting.tp if normed else 0.0


def routed_bytes(model: ModelShape, setting: BlockSetting) -> tuple[float, float]:
    """Bytes per token around the mean over experts, whose weights are in float32 as routers decide
    them (transformers' `grouped_mm_experts_forward`): in forward what experts return times its
    weight, and that in the order of tokens; in backward the gradient of this product and those of
    its factors, that of the result in the compute type too. Compiled, none of it is made."""
    handed = 0 if setting.compiled else sum(m.rows * m.run for m in model.matrices if m.reads == "expert_product")
    narrow = setting.types.compute if setting.types.compute != FLOAT32_BYTES else 0
    return 2 * FLOAT32_BYTES * handed, (3 * FLOAT32_BYTES + narrow) * handed


def final_norm_bytes(model: ModelShape, setting: BlockSetting) -> float:
    """Bytes per token that the norm behind the blocks keeps; it is not compiled with them."""
    norm = Norm(name="final_norm", size=model.hidden_size, width=model.hidden_size)
    return _norm(norm, model, replace(setting, compiled=False)) / setting.tp


def everything_bytes(model: ModelShape, setting: BlockSetting) -> float:
    """Bytes per token of all that operators of a block save, each by itself."""
    norms = sum(_norm(norm, model, setting) for norm in _norms(model))
    if model.parallel_residual and model.norm == "layer" and len(_norms(model)) > 1:
        # Both norms keep one and the same input.
        norms -= model.hidden_size * (setting.types.compute if setting.compiled else setting.layer_norm_bytes)
    masks = _BLOCK_DROPOUTS * model.hidden_size if setting.stream_dropout else 0
    made = (norms + masks) / setting.tp + _inputs(model, setting) + _masks(model, setting) + _attention(model, setting)
    adapted = [m for m in model.matrices if m.name in setting.inventory.adapted]
    # For the gradient of DoRA's magnitude: the results of the frozen matrix and of the adapter.
    results = sum(2 * m.rows for m in adapted) if setting.inventory.dora else 0
    made += (sum(_rank(m.name, setting) for m in adapted) + results) * setting.types.compute
    return made + (0.0 if setting.tiled else _mlp(model, setting))


def _made_again_inside(model: ModelShape, setting: BlockSetting) -> set[Reads]:
    """What matrices of a compiled block read of norms, sums and activations, which is made again
    out of what is saved (`parallel/compiled.py`)."""
    if not setting.compiled:
        return set()
    first = _norms(model)[0]
    reads: set[Reads] = {"mlp_input", "mlp_product"}
    if first.name.endswith(_FIRST_NORMS) and first.width == model.hidden_size:
        reads.add("attention_input")
    if setting.attention != "eager":
        reads.add("attention_output")
    return reads


def saved_under_recompute(model: ModelShape, setting: BlockSetting, recompute: Recompute) -> tuple[float, ...]:
    """Bytes per token of each tensor that a block saves."""
    return _products(model, setting) if recompute == "selective" else (block_input_bytes(model, setting),)


def _products(model: ModelShape, setting: BlockSetting) -> tuple[float, ...]:
    """Selective: the input, products and attention; compiled, of the last what a norm reads."""
    read, c = block_input_bytes(model, setting), setting.types.compute
    last = setting.compiled and not ends_with_norm(model)
    outputs = [
        m.run * m.rows * c for m in model.matrices if not made_again(m) and not (last and m.reads == "mlp_product")
    ]
    adapters = [_rank(m.name, setting) * c for m in model.matrices if m.name in setting.inventory.adapted]
    attended = (_output_width(model) * c, model.num_attention_heads * FLOAT32_BYTES)
    attention = attended if setting.attention in KEPT_BY_SELECTIVE else ()
    if setting.in_parts and not (setting.masked or setting.cuda):
        attention *= 2  # of two pieces each, which are joined (`parallel/context_attention.py`)
    # What was summed over slices stands beside the summands.
    summed = [read, read] if setting.tp > 1 else []
    return (read, *outputs, *adapters, *attention, *summed)


def made_again(matrix: Matrix) -> bool:
    """Whether selective recompute makes a product again (`parallel/recompute.py` has the rule):
    those of stacked experts, which are another operator, in any case."""
    return matrix.stacked or matrix.rows > matrix.columns


def _norms(model: ModelShape) -> tuple[Norm, ...]:
    width = model.hidden_size
    return model.norms or (Norm(name="norms", size=width, width=width), Norm(name="norms", size=width, width=width))


def _norm(norm: Norm, model: ModelShape, setting: BlockSetting) -> float:
    c, statistics = setting.types.compute, norm.groups
    trained = setting.inventory.trained(norm.name)
    if setting.tiles_norms:
        return norm.width * c
    if setting.compiled:
        return norm.width * c + (2 if model.norm == "layer" else 1) * statistics * FLOAT32_BYTES
    match model.norm:
        case "layer":
            # Native: input, mean and inverse deviation. Autocast runs it in float32, on a copy.
            width = setting.layer_norm_bytes if norm.size else FLOAT32_BYTES  # without a weight always on a copy
            return norm.width * width + 2 * statistics * width
        case "rms":
            normed = norm.width * c if trained else 0
        case "gemma":
            normed = norm.width * FLOAT32_BYTES if trained else 0
        case "centred":
            # The input less its mean is computed twice, for the variance and for the product.
            normed = norm.width * FLOAT32_BYTES * (2 if trained else 1)
    # Written out: float32 input, inverse root mean square, normed input for the weight's gradient.
    return norm.width * FLOAT32_BYTES + statistics * FLOAT32_BYTES + normed


def _inputs(model: ModelShape, setting: BlockSetting, reads: Collection[Reads] | None = None) -> float:
    """Inputs of matrices, or of those alone that read one of `reads`, each once."""
    groups: dict[Reads, list[Matrix]] = {}
    for matrix in model.matrices:
        if reads is None or matrix.reads in reads:
            groups.setdefault(matrix.reads, []).append(matrix)
    if setting.tiled:
        groups.pop("mlp_product", None)
    return sum(_group(one, matrices, model, setting) for one, matrices in groups.items())


def _masks(model: ModelShape, setting: BlockSetting, reads: Collection[Reads] | None = None) -> float:
    """What adapters of a compiled block drop out of what they read: a byte for each element."""
    if not (setting.dropout and setting.compiled):
        return 0.0
    adapted = [m for m in model.matrices if m.name in setting.inventory.adapted]
    return sum(m.columns for m in adapted if reads is None or m.reads in reads)


def _group(reads: Reads, matrices: list[Matrix], model: ModelShape, setting: BlockSetting) -> float:
    kept = [matrix for matrix in matrices if keeps_input(matrix, setting)]
    routers = [m for m in kept if model.has_experts and m.reads == "mlp_input" and not m.adaptable]
    if routers and not setting.compiled and setting.types.compute != FLOAT32_BYTES:
        # Routers decide in float32, on a copy of their own (`models/routing.py`).
        others = [matrix for matrix in matrices if matrix not in routers]
        return routers[0].columns * FLOAT32_BYTES + _group(reads, others, model, setting)
    if not kept:
        return 0.0
    size = kept[0].columns * _copies(kept[0]) * setting.types.compute
    adapted = [matrix for matrix in kept if matrix.name in setting.inventory.adapted]
    if setting.dropout and adapted and not setting.compiled:
        # Each adapter drops other elements: a copy of its own, and a mask.
        return len(adapted) * (size + kept[0].columns)
    widened = bool(adapted) and setting.widens
    if widened and not setting.compiled:
        return len(kept) * size
    # Attention keeps its own output; where it can be read in place, that is the same memory.
    rejoined = model.partial_rotary and setting.attention != "varlen"
    copies_output = setting.attention == "eager" or widened or ((rejoined or setting.masked) and not setting.in_parts)
    return 0.0 if reads == "attention_output" and not copies_output else size


def keeps_input(matrix: Matrix, setting: BlockSetting) -> bool:
    """Whether it is trained, or adapted, so that its gradient needs what it read."""
    held = setting.inventory
    return held.trained(matrix.name) or matrix.name in held.adapted or matrix.name in held.bare


def _copies(matrix: Matrix) -> int:
    """How often a token stands in a matrix's input: once for each expert that it runs through."""
    return matrix.run if matrix.reads in ("expert_input", "expert_product") else 1


def _rank(name: str, setting: BlockSetting) -> int:
    """Columns between an adapter's two halves."""
    return setting.inventory.ranks.get(name, 0)


def _attention(model: ModelShape, setting: BlockSetting) -> float:
    """Queries, keys and values as attention reads them, its output and what its kernel keeps."""
    c = setting.types.compute
    query, key, value = attention_widths(model)
    fused = sum(matrix.reads == "attention_input" for matrix in model.matrices if "mlp" not in matrix.name) == 1
    if setting.score_dropout and not setting.cuda and setting.attention != "eager":
        # PyTorch's fused kernel for processors has no dropout: the softmax, the factors that it is
        # multiplied by, and their product; all in float32.
        scores = model.num_attention_heads * setting.length
        read = 2 * query + _output_width(model) + 3 * scores
        return read * FLOAT32_BYTES + _attention_output(model, setting)
    if (setting.masked and not setting.in_parts) or setting.attention == "eager":
        read = query + query + _output_width(model)  # keys and values, for each group of heads
    elif fused and not model.position_parameters:
        # Rotated queries and keys are new; values are a view that keeps the whole fused output.
        read = query + key + (query + key + value)
    else:
        read = query + key + value
    return read * c + _attention_output(model, setting)


def _attention_output(model: ModelShape, setting: BlockSetting) -> float:
    c, heads = setting.types.compute, model.num_attention_heads
    output = _output_width(model) * c
    if setting.compiled and setting.attention == "eager":
        return heads * (setting.length * c + 2 * FLOAT32_BYTES)  # the scores, and the softmax's largest and sum
    if setting.attention != "eager":
        return output + heads * FLOAT32_BYTES  # the log of the sums, in float32
    probabilities = FLOAT32_BYTES + (c if c != FLOAT32_BYTES else 0)
    capped = c if model.attention_softcap else 0
    return heads * setting.length * (probabilities + capped)


def attention_backward_bytes(model: ModelShape, setting: BlockSetting) -> float:
    """Bytes per token of gradients of attention's result, and of what it read, less what norms
    between attention and the MLP keep, which is gone by then."""
    first, *others = _norms(model)
    behind = [norm for norm in others if norm.width == first.width and not model.parallel_residual]
    gone = sum(_norm(norm, model, setting) for norm in behind) / setting.tp
    return (_output_width(model) + sum(attention_widths(model))) * setting.types.compute - gone


def attention_widths(model: ModelShape) -> tuple[int, int, int]:
    """Elements of one token's queries, keys, and values or what a view of them keeps alive."""
    groups = model.num_key_value_heads
    # Keys and values out of one latent are halves of one product, and the values a view of it.
    expanded = next((m.rows for m in model.matrices if m.reads == "key_value_latent"), 0)
    value = expanded or groups * (model.value_head_dim or model.head_dim)
    return model.num_attention_heads * model.head_dim, groups * model.head_dim, value


def _output_width(model: ModelShape) -> int:
    return model.num_attention_heads * (model.value_head_dim or model.head_dim)


def _keeps_product(model: ModelShape, setting: BlockSetting) -> bool:
    """Whether the MLP's last matrix keeps its input as it is, and no copy of it."""
    kept = [m for m in model.matrices if m.reads == "mlp_product" and keeps_input(m, setting)]
    adapted = any(m.name in setting.inventory.adapted for m in kept)
    return bool(kept) and not (adapted and (setting.widens or setting.dropout))


def _mlp(model: ModelShape, setting: BlockSetting) -> float:
    c, wide = setting.types.compute, model.mlp_width
    # Compiled, what an activation gives is computed again.
    copies = int(model.mlp != "gated") if setting.compiled else _ACTIVATION_COPIES.get(model.activation, 1)
    if not setting.compiled and model.activation == "relu" and _keeps_product(model, setting):
        copies -= 1  # its result, which it keeps, is the product
    # What experts hand back is kept for the gradient of its weight in the mean.
    mixed = sum(m.rows * m.run for m in model.matrices if m.reads == "expert_product")
    return ((copies + 2 if model.mlp == "gated" else copies) * wide + mixed) * c


def mlp_bytes(model: ModelShape, setting: BlockSetting, *, recompute: Recompute) -> float:
    """Bytes per token that an MLP saves, with the inputs of its matrices."""
    inside: set[Reads] = {m.reads for m in model.matrices if m.reads.startswith(("mlp", "expert"))}
    kept = inside - _made_again_inside(model, setting) if recompute == "none" else inside
    if setting.tiled:
        return _inputs(model, setting, {"mlp_input"})
    return _mlp(model, setting) + _inputs(model, setting, kept) + _masks(model, setting, inside)


def tile_bytes(model: ModelShape, setting: BlockSetting) -> tuple[float, float]:
    """Bytes per token of a tile: in its forward, and in its backward, recomputed with gradients."""
    whole, c = replace(setting, tiled=False, compiled=False), setting.types.compute
    saved = _mlp(model, whole) + _inputs(model, whole, {"mlp_product"})
    return saved + model.hidden_size * c, saved + backward_bytes(model, whole)[2] + 2 * model.hidden_size * c


def adapted_apart(model: ModelShape, setting: BlockSetting) -> list[Matrix]:
    """Matrices whose adapters PEFT's own code adds to what they made."""
    joined = setting.inventory.joined if setting.tp == 1 else frozenset[str]()
    return [m for m in model.matrices if m.name in setting.inventory.adapted - joined]


def remade_bytes(model: ModelShape, setting: BlockSetting) -> float:
    """Bytes of the weights that PEFT makes of bare parameters and adapters (`ParamWrapper`)."""
    return sum(_remade(model, setting)) * setting.types.compute


def remade_backward_bytes(model: ModelShape, setting: BlockSetting) -> float:
    """Bytes of gradients of such weights, above those kept: each stands once later ones go."""
    most = gone = 0
    for elements in reversed(_remade(model, setting)):
        most, gone = max(most, elements - gone), gone + elements
    return most * setting.types.compute


def _remade(model: ModelShape, setting: BlockSetting) -> list[int]:
    return [m.count * m.rows * m.columns for m in model.matrices if m.name in setting.inventory.bare]


def fused_mlp_bytes(model: ModelShape, setting: BlockSetting, *, recompute: Recompute) -> float:
    """Bytes per token in the compiled kernel of gradients in an MLP: above the factor, inputs and
    outputs of adapters that PEFT's code adds, of the MLP's width, and the stream's after it."""
    apart, again = adapted_apart(model, setting), recompute != "none"
    where: tuple[Reads, ...] = ("attention_output", "mlp_input", "mlp_product")
    behind, first, last = (sum(m.reads == reads for m in apart) for reads in where)
    tensors = FUSED_MLP_TENSORS * (2 if model.mlp == "gated" else 1)
    if not again:
        return (tensors + first + last) * model.mlp_width * setting.types.compute
    needed = any(keeps_input(m, setting) for m in model.matrices if m.reads == "mlp_product")
    beside = (0 if model.parallel_residual else behind) + (0 if recompute == "selective" else last)
    inside = (tensors - (not needed) + 2 * first + last) * model.mlp_width
    return (inside + (1 + beside * (not ends_with_norm(model))) * model.hidden_size) * setting.types.compute


def compiled_attention_bytes(model: ModelShape, setting: BlockSetting, *, recompute: Recompute) -> float:
    """Bytes per token as a compiled block's backward comes to attention, above what it saved and
    one gradient of the stream: gradients of what its matrices and norms gave, of queries, keys and
    values, and results of adapters that were made again."""
    apart = adapted_apart(model, setting) if recompute != "none" else []
    made = sum(m.rows for m in apart if m.reads == "attention_input")
    return (3 * model.hidden_size + sum(attention_widths(model)) + made) * setting.types.compute
