"""transformers' own tensor-parallel plans of models."""

from __future__ import annotations

from typing import Any

from shardwise.errors import UnsupportedError


def tensor_plan(config: Any) -> dict[str, str]:
    """How tensor parallelism slices the modules of a block: name inside the block -> transformers' style.

    Raises:
        UnsupportedError: there is no plan, or it names modules outside the blocks.
    """
    stated: dict[str, str] = getattr(config, "base_model_tp_plan", None) or {}
    # transformers 5.17 adds a tied embedding to the plan; embedding and head are sliced by rows here, whatever is said.
    plan = {name: style for name, style in stated.items() if not style.startswith("embedding")}
    blocks = {name.partition(".*.")[0] for name in plan}
    if len(blocks) != 1:
        raise UnsupportedError(
            f"{config.model_type} has no tensor parallel plan of its blocks in transformers; write tp: 1, or use fsdp"
        )
    return {name.partition(".*.")[2]: style for name, style in plan.items()}
