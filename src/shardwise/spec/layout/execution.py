"""Execution: how one optimizer step is executed on a layout, with every choice made"""

import sys
from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod
from typing import Any, Literal, Self

from shardwise.spec.job.strict import Whole
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.optimizers import OPTIMIZER_RULES, OptimizerName, OptimizerRule
from shardwise.units import MIB

Precision = Literal["mixed", "bf16", "fp16", "fp32"]
Checkpointing = Literal["none", "selective", "full", "offloaded", "selective_offloaded"]
Recompute = Literal["none", "selective", "full"]
Offload = Literal["none", "parameters", "optimizer", "all"]
LossKind = Literal["full", "chunked"]
Attention = Literal["sdpa", "varlen", "eager", "flash_attention_2", "flash_attention_3", "flex_attention"]

_KEPT: dict[Checkpointing, Recompute] = {"none": "none", "selective": "selective", "full": "full"}
_RECOMPUTE: dict[Checkpointing, Recompute] = {**_KEPT, "offloaded": "full", "selective_offloaded": "selective"}
#: Sequences are padded to a multiple of this, which tensor cores want.
PAD_MULTIPLE = 8
#: From this share of a micro-batch on, trained positions are nearly all.
_NEARLY_ALL = 15 / 16

#: Elements that share a scale in 8-bit moments; tensors with fewer elements than the second figure
#: keep 32 bits (Dettmers et al., 2022).
BLOCK_OF_8_BIT, SMALLEST_IN_8_BIT = 256, 4096

#: Tensors that are summed or exchanged together are copied into one flat buffer of so many bytes at
#: a time: enough to fill a link, little beside what training holds anyway.
FLAT_BYTES = 256 * MIB

#: Where what blocks save is kept in the host's memory, that of so many is on the GPU at a time: of
#: the block at work, and of one whose copies leave or arrive.
SAVED_ON_GPU = 2

#: Bytes of float32 logits made at once: enough positions for matrix products at full rate.
CHUNK_BYTES = 512 * MIB

#: An MLP that is computed in tiles has so many positions at once, or more.
LEAST_MLP_CHUNK = 1024


def heads_at_once(heads: int, *, bytes_of_one: float) -> int:
    """Of how many heads the keys and values of whole rows are gathered at once."""
    return max(1, min(heads, int(CHUNK_BYTES // bytes_of_one)))


def has_8bit_moments(shape: tuple[int, ...]) -> bool:
    """Whether 8-bit AdamW keeps the moments of a tensor in 8 bits: those of large matrices whose
    rows are whole blocks, which no cut between rows divides."""
    return len(shape) > 1 and prod(shape) >= SMALLEST_IN_8_BIT and shape[-1] % BLOCK_OF_8_BIT == 0


def chosen_positions(trained: int, *, of: int) -> int:
    """How many positions go through the head: the trained ones; all, where these are nearly all."""
    return of if trained >= _NEARLY_ALL * of else trained


def padded_length(longest: int, *, max_length: int) -> int:
    """The length a batch is padded to: a multiple of `PAD_MULTIPLE`, and `max_length` at most."""
    return max(longest, min(-(-longest // PAD_MULTIPLE) * PAD_MULTIPLE, max_length))


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How one optimizer step is executed: a layout and every choice that `auto` left open.

    Attributes:
        micro_batch_size: sequences per forward per data-parallel rank.
        gradient_accumulation_steps: forwards per optimizer step per rank.
        gradient_checkpointing: what a block keeps for its backward, which computes the rest again:
            `none` all, `selective` its input, attention and some products, `full` its input;
            `selective_offloaded` and `offloaded` the same in the host's memory.
        precision: `mixed` keeps float32 masters of what is trained and computes in bfloat16.
        offload: what lies in the host's memory: `optimizer` its states, with the copies of the
            weights that it steps; `parameters` the weights, and with them their gradients and
            states; `all` is `parameters` by another name.
        loss: `chunked` makes the logits of a chunk of positions at a time, `full` those of all.
        mlp: `chunked` computes the MLP of some positions at a time, and saves of all what it reads.
        reduce_once: FSDP reduces gradients at the last micro-batch alone, where whole ones fit
            until then.
    """

    layout: Layout
    micro_batch_size: Whole
    gradient_accumulation_steps: Whole
    gradient_checkpointing: Checkpointing = "none"
    offload: Offload = "none"
    precision: Precision = "mixed"
    optimizer: OptimizerName = "adamw"
    loss: LossKind = "chunked"
    mlp: LossKind = "full"
    attn_implementation: Attention = "sdpa"
    compile: bool = False
    reduce_once: bool = False

    def but(self, **values: Any) -> Self:
        """Another with other sizes, or another recompute: fields that no cached property depends
        on. Searches make very many."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, **values)
        return other

    @property
    def attention_elsewhere(self) -> Attention:
        """As other trainers know it, which have no `varlen`."""
        return "sdpa" if self.attn_implementation == "varlen" else self.attn_implementation

    @property
    def optimizer_rule(self) -> OptimizerRule:
        """What is known of its optimizer."""
        return OPTIMIZER_RULES[self.optimizer]

    @property
    def recompute(self) -> Recompute:
        """What blocks compute again in their backward, wherever the rest waits for it."""
        return _RECOMPUTE[self.gradient_checkpointing]

    @property
    def saves_on_host(self) -> bool:
        """Whether what blocks save waits for their backward in the host's memory."""
        return self.gradient_checkpointing in ("offloaded", "selective_offloaded")

    @property
    def parameters_on_host(self) -> bool:
        """Whether weights lie in the host's memory, and come to the GPU as they are used."""
        return self.offload in ("parameters", "all")

    @property
    def optimizer_on_host(self) -> bool:
        """Whether optimizer states lie in the host's memory, where the step is then computed."""
        return self.offload != "none"

    @cached_property
    def gathers_weights(self) -> bool:
        """Whether FSDP brings weights to the GPU unit by unit, from other ranks or the host."""
        return self.layout.weight_shards > 1 or self.parameters_on_host

    @cached_property
    def postpones_reduction(self) -> bool:
        """Whether gathered weights and whole gradients stay until a step ends, for zero_bubble."""
        return self.gathers_weights and self.layout.pp > 1 and self.layout.schedule == "zero_bubble"

    @property
    def keeps_casts(self) -> bool:
        """Whether weights that autocast casts are cast once a step: if copies outlive a forward
        anyway, and blocks read parameters, not slices of them or casts of compiled blocks."""
        again = self.gradient_accumulation_steps > 1 and self.gradient_checkpointing == "none"
        return again and self.layout.tp == 1 and not self.compile

    def head_chunk(self, vocab_size: int, *, plain: bool) -> int:
        """How many positions' logits are made at once. Of a plain head each tensor-parallel rank
        makes its slice's; of others, which cap or scale logits, all have all."""
        if self.loss == "full":
            return sys.maxsize
        return max(1, CHUNK_BYTES // (4 * -(-vocab_size // (self.layout.tp if plain else 1))))

    @property
    def breaks_graphs(self) -> bool:
        """Whether a compiled block is several graphs: attention gathers keys, or tiles its MLP."""
        return self.layout.splits_rows or self.mlp == "chunked"

    def mlp_chunk(self, hidden_size: int) -> int:
        """How many positions' MLP runs at once: enough for square products that fill any GPU."""
        return sys.maxsize if self.mlp == "full" else max(LEAST_MLP_CHUNK, hidden_size)

    @cached_property
    def adds_replicas_once(self) -> bool:
        """Whether FSDP adds gradients over replicas at the last micro-batch alone, and shards' sums
        until then: as much memory as gradients take. Those on the host would come back."""
        return self.layout.weight_shards > 1 and self.layout.copies > 1 and not self.parameters_on_host

    @property
    def may_reduce_once(self) -> bool:
        """Whether `reduce_once` saves messages: not of weights on the host, to hold less memory."""
        again = self.gradient_accumulation_steps > 1 and not self.postpones_reduction
        return again and self.layout.weight_shards > 1 and not self.parameters_on_host

    def to_json(self) -> dict[str, Any]:
        """Plain data: `strategy`, `layout`, then the fields by their names."""
        return {"strategy": self.layout.strategy, **asdict(self)}


def accumulation_steps(*, global_batch_size: int, micro_batch_size: int, data_world_size: int) -> int:
    """Forwards per optimizer step so that each sample of the global batch is seen once; the last
    micro-batches are filled up with samples of zero weight."""
    return -(-global_batch_size // (micro_batch_size * data_world_size))
