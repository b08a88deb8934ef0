"""What other public tools would say of the same rows: their formulas, written here from their published descriptions.

None of them knows adapters or quantised weights, and none is asked about such rows; some count model states only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shardwise.spec.job.keys import Job
from shardwise.spec.layout.execution import Execution
from shardwise.spec.model.shape import ModelShape


class Case(Protocol):
    """What the formulas are about."""

    @property
    def job(self) -> Job:
        """Method and lengths."""
        ...

    @property
    def model(self) -> ModelShape:
        """Its shape."""
        ...

    @property
    def execution(self) -> Execution:
        """Layout, batch, precision and recompute."""
        ...


Formula = Callable[[Case], float]


@dataclass(frozen=True, kw_only=True)
class Rival:
    """One tool.

    Attributes:
        source: where its formula is described.
        bytes_per_gpu: the formula.
    """

    name: str
    source: str
    bytes_per_gpu: Formula


def _accelerate(case: Case) -> float:
    """Training with Adam: the largest of model, gradients, optimizer and step, of one whole copy of the model."""
    float32_size = 4 * case.model.num_parameters
    if case.execution.precision == "fp32":
        return 4 * float32_size  # its "step": weights, gradients, two moments
    return 2 * float32_size  # its "optimizer", the largest of the four in mixed precision


def _deepspeed(case: Case) -> float:
    """Model states without offload: stage 3 for sharded weights, stage 2 otherwise."""
    parameters, layout = case.model.num_parameters, case.execution.layout
    gpus = layout.world_size if layout.dp_shard > 1 else 1
    if layout.dp_shard > 1 and layout.zero_stage == 3 and layout.reshard_after_forward:
        return 4 * _largest_layer(case) + 18 * parameters / gpus
    return 4 * parameters + 16 * parameters / gpus


def _largest_layer(case: Case) -> int:
    """Parameters of the largest single module, usually the embedding."""
    matrices = (m.rows * m.columns for kind in case.model.kinds for m in kind.matrices)
    return max(case.model.embedding_parameters, *matrices)


def _states(case: Case, *, weights: float, gradients: float, optimizer: float) -> float:
    """Bytes per parameter of each state, divided as the ZeRO stage divides them."""
    layout = case.execution.layout
    shards = layout.dp_shard
    stage = 0 if shards == 1 else layout.zero_stage if layout.reshard_after_forward else min(2, layout.zero_stage)
    slices = layout.tp * layout.pp
    per_parameter = (
        weights / (shards if stage >= 3 else 1)
        + gradients / (shards if stage >= 2 else 1)
        + optimizer / (shards if stage >= 1 else 1)
    )
    return case.model.num_parameters * per_parameter / slices


def _cookbook(case: Case) -> float:
    """Weights and gradients in 16 bits, float32 masters and moments; activations by the formula for GELU blocks."""
    model, execution = case.model, case.execution
    full = execution.precision == "fp32"
    states = _states(case, weights=4 if full else 2, gradients=4 if full else 2, optimizer=8 if full else 12)
    tp, length = execution.layout.tp, case.job.data.max_length
    stream = length * execution.micro_batch_size * model.hidden_size * model.num_layers
    scores = 5 * model.num_attention_heads * length / (model.hidden_size * tp)
    per_element = {"full": 2.0, "selective": 10 + 24 / tp, "none": 10 + 24 / tp + scores}
    # It knows of no checkpoints in the host's memory.
    kind = "full" if execution.gradient_checkpointing == "offloaded" else execution.gradient_checkpointing
    return states + stream * per_element[kind]


def _llm_analysis(case: Case) -> float:
    """16-bit weights, float32 gradients, masters and moments; activations per layer with flash attention."""
    model, execution = case.model, case.execution
    states = _states(case, weights=2, gradients=4, optimizer=12)
    tokens = case.job.data.max_length * execution.micro_batch_size
    stream = tokens * model.hidden_size
    logits = 2 * tokens * model.vocab_size / execution.layout.tp
    if execution.gradient_checkpointing == "full":
        return states + logits + 2 * stream * model.num_layers
    attention = 2 * 5 * stream + stream  # inputs and outputs of its products, and a dropout mask
    if execution.gradient_checkpointing == "none":
        attention += 2 * (2 * stream + 4 * model.num_attention_heads * tokens)
    mlp = 2 * (1 + 2 * model.intermediate_size / model.hidden_size) * stream
    norms = 2 * 4 * stream
    return states + logits + 4 * stream + model.num_layers * (attention + mlp + norms)


RIVALS: tuple[Rival, ...] = (
    Rival(
        name="accelerate estimate-memory",
        source="accelerate 1.x, `commands/estimate.py`: training with Adam, one whole copy of the model",
        bytes_per_gpu=_accelerate,
    ),
    Rival(
        name="DeepSpeed ZeRO estimators",
        source="DeepSpeed documentation, Memory Requirements: `estimate_zero2/3_model_states_mem_needs`; states only",
        bytes_per_gpu=_deepspeed,
    ),
    Rival(
        name="EleutherAI cookbook",
        source="EleutherAI, Transformer Math 101, whose formulas `calc_transformer_mem` follows",
        bytes_per_gpu=_cookbook,
    ),
    Rival(
        name="llm-analysis",
        source="llm-analysis 0.2.2, training with its defaults: Adam, float32 gradients, flash attention",
        bytes_per_gpu=_llm_analysis,
    ),
)


def estimates(case: Case) -> dict[str, float]:
    """Bytes per GPU by tool; nothing where none of them has a formula for the row's method."""
    if case.job.method != "full" or case.execution.offload != "none":
        return {}
    return {rival.name: rival.bytes_per_gpu(case) for rival in RIVALS}
