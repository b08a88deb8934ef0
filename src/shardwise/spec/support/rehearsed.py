"""What of that which is trained cannot be rehearsed: code that PyTorch does not run on tensors
without numbers."""

from shardwise.spec.layout.execution import Execution
from shardwise.spec.model.shape import ModelShape

#: Attention that PyTorch itself computes, on processors too.
_OF_PYTORCH = ("sdpa", "eager", "varlen")


def rehearsal_refusals(execution: Execution, model: ModelShape) -> list[str]:
    """Why an execution cannot be rehearsed, as sentences; empty where it can. Blocks that it
    compiles are rehearsed eager, for the compiler chooses what a block keeps."""
    attention = execution.attn_implementation
    reasons = {
        f"offload {execution.offload} is not rehearsed: a rehearsal does not tell the host's memory from the GPU's; "
        "write train.offload: none": execution.offload != "none",
        f"gradient_checkpointing {execution.gradient_checkpointing} is not rehearsed: a rehearsal does not tell the "
        f"host's memory from the GPU's; write train.gradient_checkpointing: {execution.recompute}": (
            execution.saves_on_host
        ),
        f"{model.family} is not rehearsed: which expert a token goes to is a number, and rehearsed tensors have none": (
            model.has_experts
        ),
        f"{attention} is not rehearsed: it has kernels for GPUs alone; write train.attn_implementation: sdpa": (
            attention not in _OF_PYTORCH
        ),
    }
    return [reason for reason, holds in reasons.items() if holds]
