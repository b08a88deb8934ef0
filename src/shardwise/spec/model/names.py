"""Names of a model's modules outside its blocks, by which adapters and copies are asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class OuterNames:
    """Names in the Hugging Face module tree, from its root; the defaults are Llama's. None where a module is absent."""

    embedding: str = "model.embed_tokens"
    head: str = "lm_head"
    final_norm: str | None = "model.norm"
    blocks: str = "model.layers"
    positions: str | None = None

    @property
    def backbone(self) -> str:
        """The module around all of them but the head."""
        return self.blocks.partition(".")[0]


LLAMA_NAMES = OuterNames()
