"""Names of a model's modules outside its blocks, by which adapters and copies are asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class OuterNames:
    """Names in the Hugging Face module tree, from its root; the defaults are Llama's, and most families'.

    Attributes:
        embedding: of tokens.
        head: from hidden states to logits.
        final_norm: before the head; None where there is none.
        blocks: the list of them.
        positions: a learned table of them; None where there is none.
    """

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
