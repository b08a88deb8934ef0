"""Who asks for memory: the nearest function of a known library on the stack, and the planner's part that this is."""

from __future__ import annotations

import sys
from functools import cache
from types import CodeType

#: No part: DTensor asks what shape a result has, by tensors that it never has numbers for.
ASKS = "shapes"

#: Part of a file's path -> part of a rank's memory, the first that fits; None looks further out.
_PARTS: tuple[tuple[str, str | None], ...] = (
    ("/shardwise/train/rehearsing/", None),
    ("/shardwise/train/cross_entropy.py", "logits"),
    ("/shardwise/train/optim.py", "temporary"),
    ("/shardwise/train/update.py", "temporary"),
    ("/shardwise/parallel/recompute.py", None),
    ("/shardwise/parallel/single_stage.py", "activations"),
    ("/shardwise/parallel/", "communication"),
    ("/shardwise/", "activations"),
    ("/torch/distributed/pipelining/", "activations"),
    *((f"/torch/distributed/tensor/{file}.py", ASKS) for file in ("_op_schema", "_sharding_prop")),
    ("/torch/distributed/", "communication"),
    ("/torch/nn/parallel/", "communication"),
    ("/torch/optim/", "temporary"),
    ("/transformers/", "activations"),
    ("/peft/", "activations"),
)

#: Functions of the loss in which something else is made than logits.
_LOSS = {"_learn": "gradients", "forward": "activations"}
#: Functions of the pipeline in which others compute.
_COMPUTES = ("_backward", "_backward_input", "_backward_weight", "_forward")


def maker_of() -> tuple[str, str]:
    """(part, function) of what is being executed."""
    frame = sys._getframe(2)
    while frame is not None:
        known = _known(frame.f_code)
        if known is not None:
            return known
        frame = frame.f_back
    return "temporary", ""


@cache
def _known(code: CodeType) -> tuple[str, str] | None:
    path = code.co_filename.replace("\\", "/")
    part = next((part for piece, part in _PARTS if piece in path), None)
    if part is None:
        return None
    if part == "logits":
        part = _LOSS.get(code.co_name, part)
    if path.endswith("/parallel/pipeline.py") and code.co_name in _COMPUTES:
        part = "activations"
    for root in ("/shardwise/", "/torch/", "/transformers/", "/peft/"):
        if root in path:
            path = root.strip("/") + "/" + path.rpartition(root)[2]
    return part, f"{path.removesuffix('.py').replace('/', '.')}.{code.co_name}"
