"""What each matrix of a block is for, by what it reads and what reads its output; names are not used.

A block is known if it is attention and an MLP: matrices that make queries, keys and values of one tensor, one that
reads attention's output, and one or two matrices with a known activation and one behind them. Else it is refused.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from shardwise.errors import UnsupportedError
from shardwise.models.built.operators import HARMLESS, VIEWS, activation_ops, norm_kind, norm_of, only_views
from shardwise.models.built.traced import POSITIONS, STREAM, AttentionCall, BlockCall, Call, Origins, Seen
from shardwise.models.built.watch import DOCUMENTS, is_linear
from shardwise.spec.model.shape import Matrix, MlpKind, Norm, NormKind, Reads

#: What attention is told beside queries, keys, values and a mask, and does not change what it keeps.
_KERNEL_WORDS = frozenset({"dropout", "scaling", "sliding_window", "softcap", "is_causal"})
_CALLER_WORDS = frozenset(
    {"position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states", DOCUMENTS}
)


@dataclass(frozen=True, kw_only=True)
class Block:
    """What one block was seen to be; dims in elements."""

    matrices: tuple[Matrix, ...]
    norms: tuple[Norm, ...]
    width: int
    heads: int
    key_value_heads: int
    head_dim: int
    value_head_dim: int
    window: int | None
    capped: bool
    copies_queries: bool
    parallel: bool
    mlp: MlpKind
    activation: str
    intermediate: int
    norm_kinds: frozenset[NormKind]


def read_block(block: BlockCall, seen: Seen) -> Block:
    """Roles and dims of a block's parts. Raises UnsupportedError: something in it is not understood; says what."""
    return _Reader(block, seen).block()


def _error(block: BlockCall, what: str) -> UnsupportedError:
    return UnsupportedError(f"in its block {block.name} {what}")


def _strange(block: BlockCall) -> list[str]:
    """Operators that ran in a block and are no part of what is known."""
    return sorted({op.name for op in block.ops} - HARMLESS)


def attention_of(block: BlockCall) -> AttentionCall:
    """The one attention of a block, with heads and causal. Raises UnsupportedError: there is none, or another one."""
    found = block.attention
    if len(found) != 1:
        how_many = f"{len(found)} times" if found else "no"
        strange = _strange(block)
        but = f", but {', '.join(strange)}" if strange else ""
        raise _error(block, f"{how_many} softmax attention with heads was seen, as transformers runs it by name{but}")
    (attention,) = found
    if not attention.causal or attention.mask is None or not attention.mask.causal:
        raise _error(block, "attention is not seen to be causal: a token may see those after it")
    if not attention.mask.by_positions:
        raise _error(block, "the mask of attention is made without positions, which tell packed documents apart")
    unknown = sorted(attention.words.keys() - _KERNEL_WORDS - _CALLER_WORDS)
    window = attention.words.get("sliding_window")
    if unknown or (window is not None and window != attention.mask.window):
        raise _error(
            block, f"attention is told {', '.join(unknown) or 'another window than its mask has'}, which is not known"
        )
    return attention


class _Reader:
    def __init__(self, block: BlockCall, seen: Seen) -> None:
        self._block, self._seen = block, seen
        self._calls = {call.name: call for call in block.calls}
        self._linears = [call for call in block.calls if is_linear(call.module)]
        self._norms = [call for call in block.calls if not is_linear(call.module)]

    def block(self) -> Block:
        attention = attention_of(self._block)
        self._refuse_strange()
        inputs, output = self._attention_matrices(attention)
        first, last = self._mlp_matrices([*inputs, output])
        gated = self._is_gated(first, last)
        shared = first[0].given is inputs[0].given
        roles: dict[str, Reads] = dict.fromkeys((c.name for c in inputs), "attention_input")
        roles |= {output.name: "attention_output", last.name: "mlp_product"}
        roles |= dict.fromkeys((c.name for c in first), "attention_input" if shared else "mlp_input")
        window = None if attention.mask is None else attention.mask.window
        tokens = self._block.given.shape[:-1].numel()
        return Block(
            matrices=tuple(self._matrix(call, roles[call.name]) for call in self._linears),
            norms=joined(norm_of(call, name=self._inside(call), tokens=tokens) for call in self._norms),
            width=self._block.given.shape[-1],
            heads=attention.query.shape[1],
            key_value_heads=attention.key.shape[1],
            head_dim=attention.query.shape[3],
            value_head_dim=attention.value.shape[3],
            window=window,
            capped="softcap" in attention.words,
            copies_queries=attention.query.is_contiguous(),
            parallel=output.name not in self._ancestors(self._seen.origin(first[0].given)),
            mlp="gated" if gated else "plain",
            activation=self._activation(last, gated=gated),
            intermediate=columns_of(last),
            norm_kinds=frozenset(norm_kind(call) for call in self._norms),
        )

    def _error(self, what: str) -> UnsupportedError:
        return _error(self._block, what)

    def _refuse_strange(self) -> None:
        strange = _strange(self._block)
        if strange:
            raise self._error(f"runs {', '.join(strange)}, which is no part of attention or an MLP that is known")
        twice = sorted({c.name for c in self._block.calls if sum(c.module is o.module for o in self._block.calls) > 1})
        if twice:
            raise self._error(f"{', '.join(twice)} runs more than once")

    def _attention_matrices(self, attention: AttentionCall) -> tuple[list[Call], Call]:
        """The matrices that make queries, keys and values, in order, and the one that reads attention's output."""
        ends = [self._matrices_behind(tensor) for tensor in (attention.query, attention.key, attention.value)]
        if any(len(end) != 1 for end in ends):
            raise self._error("queries, keys and values are not each made by one matrix that reads the residual stream")
        inputs = [call for call in self._linears if any(call.name in end for end in ends)]
        made = sum(tensor.numel() // attention.query.shape[0] for tensor in (attention.query, attention.key))
        made += attention.value.numel() // attention.query.shape[0]
        if sum(rows_of(call) for call in inputs) * attention.query.shape[2] != made:
            raise self._error("queries, keys and values are not all of what the matrices before attention give")
        if any(call.given is not inputs[0].given for call in inputs):
            raise self._error("queries, keys and values are made of different tensors")
        outputs = [call for call in self._linears if self._seen.origin(call.given) == {attention.name}]
        if len(outputs) != 1 or not only_views(self._seen.ops_behind(outputs[0].given)):
            raise self._error("what attention gives is not read by one matrix as it is")
        return inputs, outputs[0]

    def _matrices_behind(self, tensor: torch.Tensor) -> set[str]:
        """The matrices that a tensor is made of, looking through norms."""
        found: set[str] = set()
        for name in self._seen.origin(tensor) - {POSITIONS}:
            call = self._calls.get(name)
            if call is None or is_linear(call.module):
                found.add(name if call else "")
            else:
                found |= self._matrices_behind(call.given)
        return found if "" not in found else set()

    def _mlp_matrices(self, attention: list[Call]) -> tuple[list[Call], Call]:
        """The one or two that widen, and the one that reads their product."""
        rest = [call for call in self._linears if call not in attention]
        names = {call.name for call in rest}
        last = [call for call in rest if self._seen.origin(call.given) & names]
        first = [call for call in rest if call not in last]
        whole = len(last) == 1 and len(first) in (1, 2) and self._seen.origin(last[0].given) == {c.name for c in first}
        if not whole or any(call.given is not first[0].given for call in first):
            raise self._error(
                f"{', '.join(sorted(names)) or 'nothing'} stands beside attention, which is no MLP that is known"
            )
        if not {last[0].name, attention[-1].name, STREAM} <= self._ancestors(self._block.made_of):
            raise self._error("what attention and the MLP give does not end in the residual stream")
        return first, last[0]

    def _ancestors(self, origins: Origins) -> set[str]:
        """All landmarks of the block behind some; attention is not looked through."""
        found: set[str] = set()
        open_ = [*origins]
        while open_:
            name = open_.pop()
            if name not in found and name in self._calls:
                open_ += self._seen.origin(self._calls[name].given)
            found.add(name)
        return found

    def _is_gated(self, first: list[Call], last: Call) -> bool:
        rows, wide = [rows_of(call) for call in first], columns_of(last)
        if rows in ([wide, wide], [2 * wide]):
            return True
        if rows == [wide]:
            return False
        raise self._error(f"an MLP widens to {' and '.join(map(str, rows))} and is read as {wide} wide")

    def _activation(self, last: Call, *, gated: bool) -> str:
        ran = [op.name for op in self._seen.ops_behind(last.given) if op.name not in VIEWS]
        for name, ops in activation_ops().items():
            if ran == [*ops, *(["mul"] if gated else [])]:
                return name
        raise self._error(f"the MLP runs {', '.join(ran) or 'nothing'}, which is no activation that is known")

    def _matrix(self, call: Call, reads: Reads) -> Matrix:
        transposed = not isinstance(call.module, torch.nn.Linear)
        return Matrix(
            name=self._inside(call),
            rows=rows_of(call),
            columns=columns_of(call),
            bias=getattr(call.module, "bias", None) is not None,
            reads=reads,
            transposed=transposed,
        )

    def _inside(self, call: Call) -> str:
        return call.name.removeprefix(f"{self._block.name}.")


def rows_of(call: Call) -> int:
    """Output features of a matrix."""
    return call.made.shape[-1]


def columns_of(call: Call) -> int:
    """Input features of a matrix."""
    return call.given.shape[-1]


def joined(norms: Iterable[Norm]) -> tuple[Norm, ...]:
    """Norms that stand in one list become one norm with a count, as in the catalogue."""
    found: dict[tuple[str, int], Norm] = {}
    for norm in norms:
        stem, _, number = norm.name.rpartition(".")
        key = (stem, norm.size) if number.isdigit() else (norm.name, norm.size)
        before = found.get(key)
        if before is None:
            found[key] = replace(norm, name=key[0])
        else:
            found[key] = replace(before, count=before.count + 1, width=before.width + norm.width)
    return tuple(found.values())
