"""Profiles of a model's blocks: forward and backward of one of each kind, on fake tensors.

Bytes and FLOPs are measured for a row of three lengths and for two rows of the first, and are taken
to be a quadratic of the length times the rows.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.nn.attention.varlen  # registers its operators
from torch import nn
from torch._subclasses.fake_impls import register_op_impl
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from shardwise.data.micro_batches import Documents
from shardwise.methods.lora import add_adapters
from shardwise.models.anatomy import Anatomy, find_anatomy
from shardwise.models.known_ahead import hold_rotations, replaced, state_packed
from shardwise.models.load import build_on_meta
from shardwise.models.nf4 import quantise_linear_layers
from shardwise.models.wrapper import find_inside, leave_others
from shardwise.parallel import experts
from shardwise.parallel.apply import parallelize
from shardwise.parallel.context import attention_of
from shardwise.parallel.ownership import local_part
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.model.profile import Amount, BlockProfile, ModelProfile, Moment
from shardwise.spec.model.shape import ModelShape
from shardwise.train.cross_entropy import Targets
from shardwise.train.loss import LossModule
from shardwise.train.model import cut_parts, join_where_alone
from shardwise.train.precision import TYPES
from shardwise.train.rehearsing.fake_kernels import kernels_of
from shardwise.train.rehearsing.ledger import Allocation, Change, Ledger
from shardwise.train.rehearsing.rank import alone

_CPU = torch.device("cpu")
_aten = torch.ops.aten


def _of_groups(rows: torch.Tensor, weights: torch.Tensor, *_: Any, **__: Any) -> float:
    """Of rows, each with the matrix of its group, or of groups of them with one another."""
    return 2.0 * rows.numel() * weights.shape[-1]


def _of_products(lefts: Sequence[torch.Tensor], rights: Sequence[torch.Tensor], *_: Any, **__: Any) -> float:
    return sum(2.0 * left.numel() * right.shape[-1] for left, right in zip(lefts, rights, strict=True))


def _of_attention(q: Any, k: Any, v: Any, _dropout: float = 0.0, is_causal: bool = False, **_: Any) -> float:
    """Two products of each query's head with all keys; half of them under a causal mask."""
    return 2.0 * q.numel() * (1 + v.shape[-1] / q.shape[-1]) * k.shape[-2] / (2 if is_causal else 1)


def _of_documents(q: Any, _k: Any, v: Any, _at: Any, _at_k: Any, _most: Any, most: int, *_: Any, **__: Any) -> float:
    """Of causal attention among the tokens of documents, of which the longest has so many keys."""
    return q.numel() * (1 + v.shape[-1] / q.shape[-1]) * most


def _backward_of(forward: Callable[..., float]) -> Callable[..., float]:
    """Of five products for the forward's two; given the gradient, forward's inputs and results."""
    return lambda _, q, k, v, _out, _lse, *how, **__: 2.5 * forward(q, k, v, *how)


#: FLOPs by operator: what torch 2.13 counts, and what it does not.
_FLOPS: dict[Any, Callable[..., float]] = {
    **flop_registry,
    _aten._grouped_mm: _of_groups,
    _aten.addmm_: flop_registry[_aten.addmm],
    torch.ops.shardwise.sum_of_products: _of_products,
    _aten._scaled_dot_product_flash_attention_for_cpu: _of_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _backward_of(_of_attention),
    torch.ops.torch_attn._varlen_attn: _of_documents,
    torch.ops.torch_attn._varlen_attn_backward: _backward_of(_of_documents),
}

#: What stands in the place of other blocks, None where they run, and how many before one that is
#: measured run all the same.
Way = tuple[type[nn.Module] | None, int]

#: Operators that are no views by their schema, and move no bytes.
_MOVE_NOTHING = {_aten._unsafe_view.default, torch.ops.prim.device.default}

#: What a block does, in forward and in backward: FLOPs, and bytes.
_WORK = ("flops", "flops_backward", "moved", "moved_backward")


@dataclass
class _Span:
    """A block's forward and backward, as places among the ledger's changes, and what it does."""

    begin: int = 0
    end: int = 0
    back: int = 0
    done: int = 0
    work: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_WORK, 0.0))
    operators: int = 0


class _Counting(Ledger):
    """Also counts what operators do, and knows which is the first behind a block."""

    def __init__(self, *, casts: bool) -> None:
        super().__init__(casts=casts, copies=False)
        self.left: _Span | None = None
        self.at_work: tuple[_Span, Literal["", "_backward"]] | None = None
        self.cast_from: dict[int, Allocation] = {}
        self.weights: set[torch.Size] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one operator, and counts its FLOPs or its bytes."""
        if self.left is not None:
            self.left.end, self.left = len(self.changes), None
        source = self._live.get(_key(args[0])) if func is torch.ops.aten._to_copy.default else None
        made = super().__torch_dispatch__(func, types, args, kwargs)
        if source is not None and isinstance(made, torch.Tensor) and _key(made) in self._live:
            self.cast_from[id(self._live[_key(made)][1])] = source[1]
        if self.at_work is not None and not (func.is_view or func in _MOVE_NOTHING):
            self._count(*self.at_work, func, args, kwargs or {}, made)
        return made

    def _count(self, span: _Span, way: str, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        span.operators += not way
        formula = _FLOPS.get(func.overloadpacket)
        # Copies of weights and of their gradients in another type are counted by the plan.
        cast = func is _aten._to_copy.default and made.shape in self.weights
        if formula is not None:
            span.work[f"flops{way}"] += formula(*args, **kwargs, out_val=made)
        elif not cast:
            span.work[f"moved{way}"] += sum(
                leaf.numel() * leaf.element_size()
                for leaf in tree_leaves((args, kwargs, made))
                if isinstance(leaf, torch.Tensor)
            )


def _key(tensor: Any) -> int:
    return tensor.untyped_storage()._cdata if isinstance(tensor, torch.Tensor) else 0


def profile_blocks(
    job: Job, execution: Execution, *, config: Any, shape: ModelShape, lengths: Sequence[int], **measured: Any
) -> ModelProfile:
    """Measures one block of each kind. `config`: of transformers; `lengths`: three, growing; others
    as `_measured` takes them. Raises what building and running raise."""
    sizes = (*((1, length) for length in lengths), (2, lengths[0]))
    taken, ran = _first_measured(job, execution, config=config, shape=shape, sizes=sizes, **measured)
    fitted = _fitted(taken, execution, lengths=lengths, sharded=measured["sharded"])
    return replace(fitted, code=", ".join(("torch", *ran)))


def whole_shares(
    job: Job, execution: Execution, *, config: Any, shape: ModelShape, length: int, **measured: Any
) -> list[dict[str, float]]:
    """For each kind of block `whole` and `whole_work` of a `BlockProfile`: of two ranks beside one,
    for a row of `length` tokens. Raises as `profile_blocks` does."""
    runs: list[list[dict[str, Any]]] = []
    for tp in (1, 2):
        asked = execution.but(layout=Layout(tp=tp), gradient_checkpointing="none")
        options: dict[str, Any] = {"sizes": [(1, length)], "sharded": False}
        taken, _ = _first_measured(job, asked, config=config, shape=shape, **options, **measured)
        runs.append(taken[0]["blocks"])

    def share(of: str, one: dict[str, Any], two: dict[str, Any]) -> float:
        return min(1.0, max(0.0, 2 * two[of] / one[of] - 1)) if one[of] else 1.0

    return [{"whole": share("saved", *pair), "whole_work": share("flops", *pair)} for pair in zip(*runs, strict=True)]


def ways_to_run() -> list[Way]:
    """In which order they are tried: some blocks read what others have stored, mostly the last
    before them, or give a tuple; what a block gives may have another form still, and all run."""
    return [
        *((stand_in, before) for before in (0, 2, sys.maxsize) for stand_in in (_Another, _AnotherInTuple)),
        (None, 0),
    ]


def _first_measured(
    job: Job, execution: Execution, *, ways: list[Way] | None = None, **given: Any
) -> tuple[list[dict[str, Any]], list[str]]:
    """By the first of `ways` that can be gone; those before it are taken out."""
    ways = ways_to_run() if ways is None else ways
    while ways[1:]:
        with suppress(RuntimeError, ValueError, TypeError, LookupError, AttributeError):
            return _measured(job, execution, others=ways[0], **given)
        del ways[0]
    return _measured(job, execution, others=ways[0], **given)


def _measured(
    job: Job,
    execution: Execution,
    *,
    config: Any,
    shape: ModelShape,
    sizes: Sequence[tuple[int, int]],
    sharded: bool,
    casts: bool,
    others: Way,
    packages: Sequence[str] = (),
) -> tuple[list[dict[str, Any]], list[str]]:
    """Numbers of micro-batches of `sizes`, rows and their length; and packages whose kernels ran.
    `sharded`: weights are in the compute type, as they are gathered; `casts`: as a `Ledger` takes
    it; `others`: the way in which other blocks are passed."""
    stand_in, before = others
    one_by_one = stand_in is not None and not before
    fakes, ledger = FakeTensorMode(allow_non_fake_inputs=True), _Counting(casts=casts)
    compute, drops = TYPES[execution.precision].compute, not job.train.disable_dropout
    state_packed(bool(job.data.packing))
    with alone(execution.layout, rank=0) as world, ExitStack() as modes:
        make = partial(_built, job, execution, deepcopy(config))
        (part,) = cut_parts(make, execution, world=world, shape=shape, drops=drops)
        anatomy = find_anatomy(part.model)
        places = _keep_one_of_each(anatomy, stand_in, before=before)
        running = [index for index, block in enumerate(anatomy.blocks) if not isinstance(block, _Another)]
        kept = [anatomy.blocks[index] for index in (places if one_by_one else running)]
        if sharded:
            for parameter in filter(torch.is_floating_point, part.model.parameters()):
                parameter.data = parameter.data.to(compute)

        def fill() -> None:
            modes.enter_context(fakes)
            modes.enter_context(ledger)
            _fill(part.model, fakes, ledger)
            ledger.weights = {local_part(parameter).shape for parameter in part.model.parameters()}

        sliced = part.stage.parts and replace(part.stage.parts, blocks=kept)
        stage = replace(part.stage, blocks=kept, parts=sliced)
        modes.enter_context(replaced((experts, "routes_here", partial(_share_of_routes, execution.layout.tp))))
        spread = parallelize([stage], execution=execution, world=world, compute_dtype=compute, materialise=fill)
        hold_rotations(spread.modules)
        stream = shape.hidden_size * compute.itemsize
        run = _Run(cast(LossModule, stage.root), kept, ledger, fakes, stream=stream, alone=one_by_one)
        ran = modes.enter_context(kernels_of(kept, packages))
        taken = [run.take(rows, length) for rows, length in sizes]
    for one in () if one_by_one else taken:
        one["blocks"] = [one["blocks"][running.index(place)] for place in places]
    return taken, ran


def _share_of_routes(tp: int, chosen: torch.Tensor, _own: range) -> tuple[torch.Tensor, ...]:
    """As many routes as go to experts of one rank on the mean: which do is a number."""
    routes = torch.arange(chosen.numel() // tp, device=chosen.device)
    return routes // chosen.shape[1], routes % chosen.shape[1]


@register_op_impl(_aten._grouped_mm.default)
def _grouped(_fakes: Any, _func: Any, rows: torch.Tensor, weights: torch.Tensor, offs: Any = None, *_: Any) -> Any:
    """What torch knows of bfloat16 alone."""
    shape = (len(offs), rows.shape[0], weights.shape[1]) if weights.ndim == 2 else (rows.shape[0], weights.shape[2])
    return rows.new_empty(shape)


def _built(job: Job, execution: Execution, config: Any) -> tuple[nn.Module, Any]:
    model, adapted = build_on_meta(config, attn_implementation=attention_of(execution)), None
    if (inside := find_inside(model)) is not None:
        leave_others(model, inside)
    if job.adapters is not None:
        adapted = add_adapters(model, job.adapters, base_model="base")
        if job.method == "qlora":
            quantise_linear_layers(model, dtype=TYPES[execution.precision].compute)
        join_where_alone(model, execution)
    return model, adapted


def _keep_one_of_each(anatomy: Anatomy, stand_in: type[nn.Module] | None, *, before: int) -> list[int]:
    """Leaves one block of each kind, and so many `before` each, and returns the places of these, as
    `ModelShape.kinds` has them."""
    counted: set[int] = set()
    kinds: dict[tuple[Any, ...], list[int]] = {}
    for index, block in enumerate(anatomy.blocks):
        own = tuple((n, tuple(p.shape)) for n, p in block.named_parameters() if id(p) not in counted)
        counted |= {id(parameter) for parameter in block.parameters()}
        kinds.setdefault(own, []).append(index)
    kept = [alike[0 if before else len(alike) // 2] for alike in sorted(kinds.values(), key=len, reverse=True)]
    if stand_in is None:
        return kept
    run = {index for one in kept for index in range(max(0, one - before), one + 1)}
    for index in set(range(len(anatomy.blocks))) - run:
        other = stand_in()
        # Some models read of a block what it is, as Nemotron-H its `block_type`.
        vars(other).update({name: of for name, of in vars(anatomy.blocks[index]).items() if name[0] != "_"})
        other._forward_pre_hooks = anatomy.blocks[index]._forward_pre_hooks  # the first block casts the stream
        anatomy.blocks[index] = other
    return kept


class _Another(nn.Module):
    """In the place of a block: gives another tensor than it is given, as a block does."""

    def forward(self, hidden_states: torch.Tensor, *_args: Any, **_kwargs: Any) -> Any:
        return hidden_states.clone()


class _AnotherInTuple(_Another):
    def forward(self, hidden_states: torch.Tensor, *_args: Any, **_kwargs: Any) -> Any:
        return hidden_states.clone(), None


def _fill(model: nn.Module, fakes: FakeTensorMode, ledger: Ledger) -> None:
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, old in module._parameters.items():
            if old is not None:
                if id(old) not in made:
                    value = torch.empty_like(old.detach(), device=_CPU)
                    made[id(old)] = nn.Parameter(value, requires_grad=old.requires_grad)
                module._parameters[name] = made[id(old)]
    ledger.take_in_buffers(model, fakes)
    ledger.tag(made.values(), "weights")


class _Run:
    """Of some blocks. `stream`: a token's bytes of it; `alone`: others stand in for the rest."""

    def __init__(
        self,
        root: LossModule,
        blocks: Sequence[nn.Module],
        ledger: _Counting,
        fakes: FakeTensorMode,
        *,
        stream: int,
        alone: bool,
    ) -> None:
        self._root, self._ledger, self._fakes, self._stream, self._alone = root, ledger, fakes, stream, alone
        self._spans = [_Span() for _ in blocks]
        self._head = 0
        for index, block in enumerate(blocks):
            block.register_forward_pre_hook(partial(self._enter, index), with_kwargs=True, prepend=True)
            block.register_forward_hook(partial(self._leave, index), prepend=True)
        cast(nn.Module, root.head_loss).register_forward_pre_hook(self._reach_head)

    @property
    def _now(self) -> int:
        return len(self._ledger.changes)

    def take(self, rows: int, length: int) -> dict[str, Any]:
        """Numbers of one micro-batch: of each block, and of what all share."""
        with _disable_current_modes():
            ids = torch.zeros(rows, length, dtype=torch.int64)
            places = torch.arange(length).expand(rows, length).contiguous()
            targets = Targets.of(torch.zeros(rows, length, dtype=torch.int64), device=_CPU)
            told = Documents.of(places)
        start, self._spans = self._now, [_Span() for _ in self._spans]
        given = {"input_ids": self._fakes.from_tensor(ids), "position_ids": self._fakes.from_tensor(places)}
        told = replace(told, ends=self._fakes.from_tensor(told.ends))  # which a kernel hears that asks
        self._root(**given, targets=targets, documents=told).backward()
        trained = [p for p in self._root.parameters() if p.grad is not None]
        self._ledger.tag([p.grad for p in trained if p.grad is not None], "gradients")
        read = self._read(start, stream=rows * length * self._stream)
        for parameter in trained:
            parameter.grad = None
        return read

    def _enter(self, index: int, _module: nn.Module, args: Any, kwargs: Any) -> None:
        span, given = self._spans[index], args[0] if args else kwargs["hidden_states"]
        given.requires_grad_()  # the first block is to do what others do, whose inputs have gradients
        span.begin, self._ledger.at_work = self._now, (span, "")

        def done(_: torch.Tensor) -> None:
            span.done = self._now
            if self._ledger.at_work is not None and self._ledger.at_work[0] is span:
                self._ledger.at_work = None

        given.register_hook(done)

    def _leave(self, index: int, _module: nn.Module, _inputs: Any, output: Any) -> None:
        span, made = self._spans[index], output[0] if isinstance(output, tuple | list) else output
        self._ledger.left, self._ledger.at_work = span, None

        def begin(_: torch.Tensor) -> None:
            span.back, self._ledger.at_work = self._now, (span, "_backward")

        made.register_hook(begin)

    def _reach_head(self, *_: Any) -> None:
        self._head = self._now

    def _read(self, start: int, *, stream: int) -> dict[str, Any]:
        changes, ledger = self._ledger.changes[start:], self._ledger
        own = {id(change.allocation) for change in changes if change.allocation.part == "gradients"}
        own |= {id(ledger.cast_from[key]) for key in own if key in ledger.cast_from}
        # Weights, and their casts; what a backward makes may have no maker on the stack.
        own |= {
            id(a) for a in (c.allocation for c in changes) if a.part == "weights" or (a.part == "temporary" and a.maker)
        }
        deltas = [0 if id(change.allocation) in own else change.delta for change in changes]
        alive = np.array([0, *accumulate(deltas)])
        grown = [(at, c) for at, c in enumerate(changes, start=1) if c.allocation.part == "gradients" and c.delta > 0]
        first = min(self._spans, key=lambda span: span.begin).begin - start
        last = max(self._spans, key=lambda span: span.begin).end - start
        blocks = [_numbers(span, start, alive, grown) for span in self._spans]
        # Until it returns, the backbone's own code holds the embedding, beside the stream that the
        # block is given, unless that is the embedding itself, as of a first block.
        held = stream if self._alone else 0
        final = alive[self._head - start] - alive[last] + held
        return {"shared": alive[first] - stream - held, "final": final, "blocks": blocks}


def _numbers(span: _Span, start: int, alive: Any, grown: Sequence[tuple[int, Change]]) -> dict[str, Any]:
    """What a block keeps; and of its backward (elements of gradients there, elements of the one
    that has just been made or 0) -> the most that is alive then."""
    begin, end, back, done = (at - start for at in (span.begin, span.end, span.back, span.done))
    here, done = alive - alive[begin], max(done, back + 1)
    moments, made, since = dict[tuple[int, int], int](), 0, back
    for at, elements in [*((at, math.prod(c.allocation.shape)) for at, c in grown if back < at <= done), (done + 1, 0)]:
        moments[made, 0] = int(here[since:at].max(initial=here[since]))
        made, since = made + elements, at
        if elements:
            moments[made, elements] = int(here[at])
    return {
        "saved": here[end],
        "forward": here[begin : end + 1].max(),
        "backward": moments,
        "operators": span.operators,
        **span.work,
    }


def _fitted(
    taken: Sequence[dict[str, Any]], execution: Execution, *, lengths: Sequence[int], sharded: bool
) -> ModelProfile:
    """Functions of rows and length through what was measured."""

    def amount(numbers: Iterable[Any]) -> Amount:
        *single, double = map(float, numbers)
        once = 2 * single[0] - double
        square, linear, constant = np.polyfit(lengths, [one - once for one in single], 2)
        return Amount(once=once, row=(float(constant), float(linear), float(square)))

    def block(index: int) -> BlockProfile:
        each = [one["blocks"][index] for one in taken]
        moments = [
            Moment(alive=amount(one["backward"][key] for one in each), gradients=key[0], fresh=key[1])
            for key in each[-1]["backward"]
            if all(key in one["backward"] for one in each)
        ]
        amounts: dict[str, Any] = {name: amount(one[name] for one in each) for name in ("saved", "forward", *_WORK)}
        return BlockProfile(**amounts, backward=tuple(_highest(moments)), operators=each[-1]["operators"])

    return ModelProfile(
        precision=execution.precision,
        attention=execution.attn_implementation,
        recompute=execution.recompute,
        sharded=sharded,
        shared=amount(one["shared"] for one in taken),
        final=amount(one["final"] for one in taken),
        blocks=tuple(block(index) for index in range(len(taken[0]["blocks"]))),
    )


def _highest(moments: Sequence[Moment]) -> Iterator[Moment]:

    def numbers(moment: Moment) -> tuple[float, ...]:
        return moment.alive.once, *moment.alive.row, moment.gradients, moment.gradients - moment.fresh, moment.fresh

    kept: list[tuple[float, ...]] = []
    for moment in sorted(moments, key=numbers, reverse=True):
        own = numbers(moment)
        if not any(all(x >= y - 1e-6 * abs(y) - 1 for x, y in zip(other, own, strict=True)) for other in kept):
            kept.append(own)
            yield moment
