"""Which blocks of a model have experts."""

from __future__ import annotations

from shardwise.catalog.blocks import Dimensions
from shardwise.catalog.family import Family
from shardwise.spec.model import OtherBlocks


def blocks_of(family: Family, d: Dimensions) -> tuple[OtherBlocks, ...]:
    """The kinds of blocks of a model, the most numerous first."""
    norms, attention = family.norms(d), family.attention(d)
    sparse = sum(map(bool, family.placement(d))) if family.experts else 0
    dense = OtherBlocks(count=d.layers - sparse, matrices=attention + family.mlp(d), norms=norms)
    if family.experts is None or not sparse:
        return (dense,)
    routed = OtherBlocks(count=sparse, matrices=attention + family.experts(d), norms=norms)
    kinds = (routed, dense) if routed.count >= dense.count else (dense, routed)
    return tuple(kind for kind in kinds if kind.count)
