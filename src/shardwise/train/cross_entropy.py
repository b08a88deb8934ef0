"""The summed cross entropy of a head's logits, over chunks of positions.

Gradients are made together with logits, in forward: a chunk's logits become their own gradient in
place, and backward scales what was made. No more than one chunk of logits exists, and nothing is
computed twice.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from shardwise.data.store import IGNORED
from shardwise.parallel import compiled
from shardwise.parallel.mesh import to_device
from shardwise.parallel.tensor.collectives import Rows
from shardwise.spec.layout.execution import chosen_positions
from shardwise.train.preference.row_loss import PreferenceLoss, RowLogProbs


class Whole:
    """All tokens, on one rank."""

    first = 0

    def largest(self, rows: Tensor) -> Tensor:
        """What is given."""
        return rows

    total = largest


#: Tokens that this rank makes logits of; maxima and sums over the ranks that make the others.
Vocabulary = Whole | Rows
#: Of sums of log-probabilities, float32 [num_sums], the loss and its slopes.
RowLoss = PreferenceLoss | RowLogProbs


@dataclass(frozen=True, kw_only=True)
class Targets:
    """What a micro-batch trains. `labels`: int64 [n], the token to predict, or `IGNORED`;
    `positions`: int64 [n], indices into the flattened rows in order, None for all; `row_loss`:
    makes the loss of log-probabilities, each added to the sum that `rows`, int64 [n], says."""

    labels: Tensor
    positions: Tensor | None
    rows: Tensor | None = None
    row_loss: RowLoss | None = None

    @classmethod
    def of(
        cls, labels: Tensor, *, device: torch.device, rows: Tensor | None = None, row_loss: RowLoss | None = None
    ) -> Self:
        """From shifted labels [batch, length] on the CPU, without a GPU synchronisation."""
        flat = labels.flatten()
        positions = (flat != IGNORED).nonzero().squeeze(1)
        are_all = chosen_positions(len(positions), of=len(flat)) == len(flat)
        chosen = slice(None) if are_all else positions
        return cls(
            labels=to_device(flat[chosen], device),
            positions=None if are_all else to_device(positions, device),
            rows=None if rows is None else to_device(rows.flatten()[chosen], device),
            row_loss=row_loss,
        )


@dataclass(frozen=True, kw_only=True)
class Chunks(Targets):
    """Targets, `size` at a time. `compiled`: softmax is one kernel, where a rank has all tokens."""

    size: int
    compiled: bool = False

    def __iter__(self) -> Iterator[tuple[slice, Any, Tensor]]:
        for start in range(0, len(self.labels), self.size):
            at = slice(start, start + self.size)
            yield at, at if self.positions is None else self.positions[at], self.labels[at]


def linear_loss(
    hidden: Tensor, chunks: Chunks, *, weight: Tensor, bias: Tensor | None, vocabulary: Vocabulary
) -> Tensor:
    """The loss, a float32 scalar, of hidden states [n, width] under a linear head [tokens, width].
    Products are in autocast's type if it is on, else in the weight's; softmax in float32."""
    head = _Linear(trained=[weight.requires_grad, bias is not None and bias.requires_grad])
    kind = cast(Any, _Loss if chunks.row_loss is None else _OfRows)
    return kind.apply(head, chunks, vocabulary, torch.is_grad_enabled(), hidden, weight, bias)


def any_loss(
    hidden: Tensor, chunks: Chunks, *, logits: Callable[[Tensor], Tensor], parameters: Sequence[Tensor]
) -> Tensor:
    """The same of any function from hidden states to logits [n, tokens], training parameters."""
    learns = torch.is_grad_enabled()
    kind = cast(Any, _Loss if chunks.row_loss is None else _OfRows)
    return kind.apply(_Any(logits, learns=learns), chunks, Whole(), learns, hidden, *parameters)


class _Linear:
    """A linear layer. Its weight's gradient is summed in place, in the type of the products."""

    def __init__(self, *, trained: Sequence[bool]) -> None:
        self._trains_weight, self._trains_bias = trained

    @property
    def trains(self) -> bool:
        return self._trains_weight or self._trains_bias

    def begin(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> torch.dtype:
        device = hidden.device.type
        compute = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        # Of a trained parameter autocast keeps its copy, perhaps for a whole step.
        self._weight = weight if weight.is_leaf and weight.requires_grad else weight.to(compute)
        self._bias = None if bias is None else bias.to(compute)
        self.gradients: list[Tensor | None] = [None, None]
        return compute

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self._weight, self._bias)

    def backward(self, hidden: Tensor, gradient: Tensor) -> Tensor:
        self._learn(hidden, gradient)
        return gradient @ self._weight

    def _learn(self, hidden: Tensor, gradient: Tensor) -> None:
        """By itself: a rehearsal tells gradients from logits by the function that makes them."""
        weight, bias = self.gradients
        if self._trains_weight:
            turned = gradient.T
            weight = turned @ hidden if weight is None else weight.addmm_(turned, hidden)
        if self._trains_bias:
            bias = _added(bias, gradient.sum(0, dtype=torch.float32))
        self.gradients = [weight, bias]


class _Any:
    """A function whose gradients autograd makes, chunk by chunk."""

    def __init__(self, function: Callable[[Tensor], Tensor], *, learns: bool) -> None:
        self._function, self._learns = function, learns

    @property
    def trains(self) -> bool:
        return bool(self._parameters)

    def begin(self, hidden: Tensor, *parameters: Tensor) -> torch.dtype:
        self._parameters = parameters
        self.gradients: list[Tensor | None] = [None for _ in parameters]
        return hidden.dtype

    def logits(self, hidden: Tensor) -> Tensor:
        with torch.set_grad_enabled(self._learns):
            # Cut off, so that a chunk's graph ends here and is freed with the chunk.
            self._given = hidden.detach().requires_grad_(self._learns)
            made = self._function(self._given)
        # Its edge in their place: logits would wait for backward, beside the copy.
        self._edge = get_gradient_edge(made) if self._learns else None
        return made.detach().clone()  # what autograd keeps is not to be changed

    def backward(self, _hidden: Tensor, gradient: Tensor) -> Tensor:
        of_hidden, *fresh = torch.autograd.grad(
            cast(GradientEdge, self._edge), (self._given, *self._parameters), gradient
        )
        self.gradients = [_added(sum_, one) for sum_, one in zip(self.gradients, fresh, strict=True)]
        return of_hidden


def _added(before: Tensor | None, fresh: Tensor) -> Tensor:
    return fresh if before is None else before.add_(fresh)


class _Loss(torch.autograd.Function):
    """The losses of all chunks, summed; the gradients stay until backward."""

    @staticmethod
    def forward(
        ctx: Any, head: _Linear | _Any, chunks: Chunks, vocabulary: Vocabulary, learns: bool, *tensors: Any
    ) -> Tensor:
        hidden, loss = tensors[0], tensors[0].new_zeros((), dtype=torch.float32)
        compute, of_hidden = head.begin(*tensors), None
        if learns and hidden.requires_grad:
            empty = torch.empty if chunks.positions is None else torch.zeros
            of_hidden = empty(hidden.shape, dtype=compute, device=hidden.device)
        losses = _losses_under(chunks, vocabulary)
        for _, here, labels in chunks:
            given = hidden[here].to(compute)
            logits = head.logits(given)
            loss += losses(logits, labels, learns=learns).sum()
            if learns:
                gradient = head.backward(given, logits)
                if of_hidden is not None:
                    of_hidden[here] = gradient
            del logits
        _keep(ctx, of_hidden, head, tensors)
        return loss

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (None,) * 4 + tuple(
            _scaled(made, like, scale) if needed else None
            for made, like, needed in zip(ctx.saved_tensors, ctx.like, ctx.needs_input_grad[4:], strict=True)
        )


class _OfRows(_Loss):
    """The loss that is made of log-probabilities. A slope in them is known once all are. The
    gradient of a hidden state waits for it, as it is; that of a trained head is made with it, of
    the logits where they are one chunk, else of logits that are made again."""

    @staticmethod
    def forward(
        ctx: Any, head: _Linear | _Any, chunks: Chunks, vocabulary: Vocabulary, learns: bool, *tensors: Any
    ) -> Tensor:
        hidden, row_loss, rows = tensors[0], cast(Any, chunks.row_loss), cast(Tensor, chunks.rows)
        compute, of_hidden = head.begin(*tensors), None
        if learns and hidden.requires_grad:
            empty = torch.empty if chunks.positions is None else torch.zeros
            of_hidden = empty(hidden.shape, dtype=compute, device=hidden.device)
        losses, sums = _losses_under(chunks, vocabulary), hidden.new_zeros(row_loss.num_sums, dtype=torch.float32)
        is_one, again = len(chunks.labels) <= chunks.size, False
        made: list[Tensor] = []
        for at, here, labels in chunks:
            made.clear()  # the logits of the chunk before
            given = hidden[here].to(compute)
            made = [given, logits := head.logits(given)]
            again = learns and head.trains and not is_one
            found = losses(logits, labels, learns=learns and not again)
            sums.index_add_(0, rows[at], found, alpha=-1)
            if of_hidden is not None and not head.trains:
                of_hidden[here] = head.backward(given, logits)
            del logits
        loss, slopes = row_loss(sums, learns=learns)
        weights = -slopes[rows].to(compute).unsqueeze(1)
        if learns and head.trains:
            for at, here, labels in chunks:
                if again:
                    made.clear()
                    given = hidden[here].to(compute)
                    made = [given, head.logits(given)]
                    losses(made[1], labels, learns=True)
                gradient = head.backward(made[0], made[1].mul_(weights[at]))
                if of_hidden is not None:
                    of_hidden[here] = gradient
        elif of_hidden is not None and chunks.positions is None:
            of_hidden.mul_(weights)
        elif of_hidden is not None:
            whole = weights.new_zeros(len(hidden), 1)
            whole[chunks.positions] = weights
            of_hidden.mul_(whole)
        _keep(ctx, of_hidden, head, tensors)
        return loss


def _losses_under(chunks: Chunks, vocabulary: Vocabulary) -> Callable[..., Tensor]:
    if chunks.compiled and isinstance(vocabulary, Whole):
        return _compiled(compiled.BACKEND)
    return partial(_losses, vocabulary=vocabulary)


def _keep(ctx: Any, of_hidden: Tensor | None, head: _Linear | _Any, tensors: Sequence[Any]) -> None:
    ctx.save_for_backward(of_hidden, *head.gradients)
    # Of hidden states only shape and type are kept; parameters, maybe sharded, are alive anyway.
    hidden = tensors[0]
    like = hidden.new_empty(()).expand(hidden.shape)
    ctx.like = [like, *(None if one is None else one.detach() for one in tensors[1:])]


def _scaled(made: Tensor | None, like: Tensor, scale: Tensor) -> Tensor:
    """A gradient in its tensor's type; zeros if no chunk. What is saved stays for a backward."""
    if made is None:
        return torch.zeros_like(like, memory_format=torch.contiguous_format)
    return made.to(like.dtype, copy=True).mul_(scale)


def _losses(logits: Tensor, labels: Tensor, *, vocabulary: Vocabulary, learns: bool) -> Tensor:
    """The loss of each position, in float32; logits [n, tokens] become their gradients in place
    (`learns`), that is softmax less one at the label, or 0 where the position is ignored."""
    counts = (labels != IGNORED).float()
    own = labels - vocabulary.first
    here = (own >= 0) & (own < logits.shape[1])
    # A label that another rank has is looked up anywhere, and counts 0.
    place, here = own.clamp(0, logits.shape[1] - 1).unsqueeze(1), here.float().unsqueeze(1)
    of_label = logits.gather(1, place).float() * here
    # Less the largest, no power overflows.
    most = vocabulary.largest(logits.amax(1, keepdim=True).float())
    powers = (logits.sub_(most) if logits.dtype == torch.float32 else logits - most).exp_()
    total, of_label = vocabulary.total(torch.cat([powers.sum(1, keepdim=True), of_label], 1)).split(1, 1)
    if learns:
        powers.scatter_add_(1, place, -total * here)
        torch.mul(powers, counts.unsqueeze(1) / total, out=logits)
    return (total.log() + most - of_label).squeeze(1) * counts


@cache
def _compiled(backend: str) -> Callable[..., Tensor]:
    return torch.compile(_losses_of_all, backend=backend, fullgraph=True)


def _losses_of_all(logits: Tensor, labels: Tensor, *, learns: bool) -> Tensor:
    """As `_losses`, in a form that a compiler fuses: of each logit only its gradient is stored."""
    counts = (labels != IGNORED).unsqueeze(1)
    wide = logits.float()
    most = wide.amax(1, keepdim=True)
    total = (wide - most).exp().sum(1, keepdim=True)
    own = torch.arange(logits.shape[1], device=logits.device) == labels.unsqueeze(1)
    of_label = torch.where(own, wide, 0).sum(1, keepdim=True)
    if learns:
        logits.copy_(((wide - most).exp() / total - own.float()) * counts)
    return ((total.log() + most - of_label) * counts).squeeze(1)
