"""What lies outside a model's blocks: embedding, positions, norms and head."""

from dataclasses import dataclass

import torch
from torch import nn

from shardwise.errors import UnsupportedError
from shardwise.models.anatomy import Anatomy
from shardwise.models.built.ends import refuse_unchained
from shardwise.models.built.operators import norm_kind, norm_of, only_views
from shardwise.models.built.traced import POSITIONS, TOKENS, Call, Seen
from shardwise.models.built.watch import is_linear
from shardwise.models.stage import outer_modules
from shardwise.spec.model.shape import Norm, NormKind, OuterNames


@dataclass(frozen=True, kw_only=True)
class Outside:
    """What was seen outside the blocks; sizes in elements. `plain_head`: logits are the head's output; `ended`: no
    position table or weighted norm before the blocks, and the final norm is that of transformers' plan."""

    vocabulary: int
    embedding_width: int
    position_parameters: int
    final_norm_parameters: int
    head_bias: bool
    outer_norms: tuple[Norm, ...]
    names: OuterNames
    norm_kinds: frozenset[NormKind]
    plain_head: bool
    ended: bool


def read_outside(anatomy: Anatomy, seen: Seen) -> Outside:
    """What lies outside the blocks. Raises UnsupportedError: something there is not understood; says what."""
    return _Reader(anatomy, seen).outside()


class _Reader:
    def __init__(self, anatomy: Anatomy, seen: Seen) -> None:
        self._anatomy, self._seen = anatomy, seen
        self._tables = [call for call in seen.outside if isinstance(call.module, nn.Embedding)]
        self._norms = [call for call in seen.outside if call not in self._tables and not is_linear(call.module)]

    def outside(self) -> Outside:
        """Everything, checked."""
        self._refuse_strange()
        embedding = self._one_call(self._anatomy.embedding, "embedding")
        head = self._one_call(self._anatomy.head, "head")
        vocabulary, width = embedding.module.get_parameter("weight").shape
        heads = tuple(head.module.get_parameter("weight").shape)
        if heads != (vocabulary, width):
            raise UnsupportedError(f"its head is {heads} and its embedding {(vocabulary, width)}; one shape is known")
        final = self._final_norm()
        before = [call for call in self._norms if call is not final]
        refuse_unchained(self._anatomy, self._seen)
        return Outside(
            vocabulary=vocabulary,
            embedding_width=width,
            position_parameters=self._positions(embedding),
            final_norm_parameters=0 if final is None else self._norm(final).num_parameters,
            head_bias=getattr(head.module, "bias", None) is not None,
            outer_norms=tuple(self._norm(call) for call in before),
            names=self._names(embedding, head, final),
            norm_kinds=frozenset(norm_kind(call) for call in self._norms),
            plain_head=self._is_plain(head),
            ended=self._ends(embedding, final, before),
        )

    def _refuse_strange(self) -> None:
        strange = [c.name for c in self._seen.outside if is_linear(c.module) and c.module is not self._anatomy.head]
        if strange:
            raise UnsupportedError(f"{', '.join(strange)} stands outside its blocks, and is not the head")

    def _one_call(self, module: nn.Module, what: str) -> Call:
        calls = [call for call in self._seen.outside if call.module is module]
        if len(calls) != 1:
            raise UnsupportedError(f"its {what} was seen to run {len(calls)} times in a forward; once is expected")
        return calls[0]

    def _positions(self, embedding: Call) -> int:
        """Elements of a learned table of positions."""
        if self._seen.origin(embedding.given) != {TOKENS}:
            raise UnsupportedError("its embedding is not seen to look up the token ids")
        others = [call for call in self._tables if call is not embedding]
        if any(self._seen.origin(call.given) != {POSITIONS} for call in others) or len(others) > 1:
            names = ", ".join(call.name for call in others)
            raise UnsupportedError(f"{names} stands beside its embedding; one table looked up by positions is known")
        return sum(call.module.get_parameter("weight").numel() for call in others)

    def _names(self, embedding: Call, head: Call, final: Call | None) -> OuterNames:
        """What they are called, beside the list of blocks and a table of positions."""
        modules = self._anatomy.model.named_modules()
        return OuterNames(
            embedding=embedding.name,
            head=head.name,
            final_norm=None if final is None else final.name,
            blocks=next(name for name, module in modules if module is self._anatomy.blocks),
            positions=next((call.name for call in self._tables if call is not embedding), None),
        )

    def _final_norm(self) -> Call | None:
        """The norm between the last block and the head; None where there is none."""
        last, hidden = self._seen.blocks[-1].made, self._seen.hidden
        final = next((call for call in self._norms if call.given is last), None)
        end = last if final is None else final.made
        if hidden is end or (final is not None and hidden is not None and self._is_view(hidden, final.name)):
            return final
        raise UnsupportedError("what its backbone returns is not what its last block, or a norm behind that, gives")

    def _is_view(self, tensor: torch.Tensor, name: str) -> bool:
        return self._seen.origin(tensor) == {name} and only_views(self._seen.ops_behind(tensor))

    def _norm(self, call: Call) -> Norm:
        name = call.name.removeprefix(f"{self._anatomy.backbone_name}.")
        return norm_of(call, name=name, tokens=call.given.shape[:-1].numel())

    def _is_plain(self, head: Call) -> bool:
        seen = self._seen
        ops = [] if head.given is seen.hidden or seen.hidden is None else seen.ops_behind(head.given)
        known = seen.hidden is not None and seen.origin(head.given) == seen.origin(seen.hidden)
        if not known or seen.logits is None or seen.origin(seen.logits) != {head.name}:
            raise UnsupportedError("its logits are not made by its head of what its backbone returns")
        return only_views(ops) and only_views(seen.ops_behind(seen.logits))

    def _ends(self, embedding: Call, final: Call | None, before: list[Call]) -> bool:
        if final is None or len(self._tables) != 1 or any(True for call in before for _ in call.module.parameters()):
            return False
        try:
            names = outer_modules(self._anatomy)
        except UnsupportedError:
            return False
        backbone = self._anatomy.backbone
        return [getattr(backbone, name, None) for name in names] == [embedding.module, final.module]
