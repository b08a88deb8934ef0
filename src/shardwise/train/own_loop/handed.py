"""What is handed out to optimizers: of every trained weight this rank's part, under the same names
on every rank. And whether one steps parts as it steps wholes: tried out, as no class says so."""

import copy
import inspect
import math
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves, tree_map_only

from shardwise.errors import UnsupportedError
from shardwise.parallel.mesh import all_gather_single
from shardwise.parallel.optimizer.stepped import Detour, Named
from shardwise.parallel.ownership import Ownership, sharded_dims
from shardwise.train.guards.checks import gather, part_hashes


class Gradient(torch.Tensor):
    """This rank's part of a gradient. What is computed from it element by element is again such a
    part; a norm, a sum or an extreme over all of its elements is that of the whole weight, on every
    rank: a collective, which every rank calls. `counts`: whether the part is counted on this rank,
    of those that hold copies of it."""

    part: torch.Tensor
    counts: bool

    @classmethod
    def of(cls, part: torch.Tensor, *, counts: bool) -> Self:
        """A part as such."""
        options: dict[str, Any] = {"strides": part.stride(), "dtype": part.dtype, "device": part.device}
        made: Any = torch.Tensor._make_wrapper_subclass(cls, part.size(), **options)  # pyright: ignore
        made.part, made.counts = part, counts
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    def __repr__(self, **_: Any) -> str:
        return f"Gradient(part of this rank: {self.part!r})"

    def to_local(self) -> torch.Tensor:
        """This rank's part, a plain tensor."""
        return self.part

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # pyright: ignore
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Gradient)]
        name = func._schema.name.removeprefix("aten::")
        if name == "_foreach_norm":
            return [torch.linalg.vector_norm(one, *args[1:]) for one in args[0]]
        if name in _COMBINED:
            return _whole(func, given, args, kwargs or {}, name=name)
        if torch.Tag.pointwise in func.tags or name in _ELEMENTWISE or name.startswith(("_foreach", "_fused")):
            return _elementwise(func, given, args, kwargs or {}, name=name)
        if name == "cat" and len(given) == len(args[0]) and all(part.ndim == 1 for part in args[0]):
            # Side by side, of the parts those that this rank counts.
            return Gradient.of(torch.cat([one.part if one.counts else one.part[:0] for one in given]), counts=True)
        raise _refused(name)


def plain(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's part of a gradient."""
    return gradient.part if isinstance(gradient, Gradient) else gradient


def _refused(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name} of a gradient: each rank holds a part of it, and only what is computed element by element, and norms, "
        "sums and extremes over all elements, are right of parts. Clip by model.clip_grad_norm_(max_norm) or "
        "torch.nn.utils.clip_grad_norm_; this rank's part is gradient.to_local()"
    )


#: Beside what torch calls pointwise: the same elements, or as many new ones.
_ELEMENTWISE = frozenset(
    # ruff: noqa: SIM905
    "view _unsafe_view detach alias clone _to_copy permute t transpose squeeze unsqueeze zeros_like ones_like "
    "empty_like full_like fill fill_ zero_ copy_ masked_fill masked_fill_".split()
)

#: Reductions -> how parts' results become that of the whole, and the result for no elements.
_COMBINED: dict[str, tuple[Callable[[torch.Tensor, float], torch.Tensor], float]] = {
    **dict.fromkeys(("sum", "mean", "dot", "vdot", "count_nonzero"), (lambda found, _: found.sum(), 0.0)),
    **dict.fromkeys(("max", "amax"), (lambda found, _: found.amax(), -math.inf)),
    "any": (lambda found, _: found.amax(), 0.0),
    **dict.fromkeys(("min", "amin", "all"), (lambda found, _: found.amin(), math.inf)),
    **dict.fromkeys(("linalg_vector_norm", "norm"), (torch.linalg.vector_norm, 0.0)),
}


def _local(func: Any, args: Any, kwargs: Any, *, of: Callable[[Gradient], torch.Tensor] = plain) -> Any:
    return func(*tree_map_only(Gradient, of, args), **tree_map_only(Gradient, of, kwargs))


def _elementwise(func: Any, given: list[Gradient], args: Any, kwargs: Any, *, name: str) -> Any:
    """Parts of parts; what is changed in place stays what it is."""
    found = _local(func, args, kwargs)
    if func._schema.is_mutable:
        return kwargs.get("out", args[0]) if isinstance(found, torch.Tensor) else found
    if not isinstance(found, torch.Tensor):
        pairs = zip(found, args[0], strict=True)
        return [Gradient.of(one, counts=of.counts) if isinstance(of, Gradient) else one for one, of in pairs]
    if any(one.counts != given[0].counts or one.part.numel() != found.numel() for one in given):
        raise _refused(f"{name} with another shape or weight")
    return Gradient.of(found, counts=given[0].counts)


def _whole(func: Any, given: list[Gradient], args: Any, kwargs: Any, *, name: str) -> torch.Tensor:
    """What a reduction over all elements of the whole weight is: one exchange of parts' results."""
    like = _local(func, args, kwargs, of=lambda one: one.part.new_ones((1,) * one.ndim))
    order = 2.0 if len(args) < 2 or args[1] is None or "norm" not in name else float(args[1])
    if not isinstance(like, torch.Tensor) or like.ndim or order <= 0:
        raise _refused(f"{name} over some dims, or of an order that is not positive,")
    part, (combine, nothing) = given[0].part, _COMBINED[name]
    if name in ("sum", "mean", "linalg_vector_norm") and part.is_floating_point():  # 16 bits and long sums lose digits
        kwargs = {**kwargs, "dtype": torch.float64 if part.device.type == "cpu" else torch.float32}
    counted = part.numel() * given[0].counts
    mine = part.new_tensor([nothing, 0.0], dtype=torch.float64)
    if counted:
        mine[0], mine[1] = part.sum(**kwargs) if name == "mean" else _local(func, args, kwargs), counted
    everyone = mine.new_empty(dist.get_world_size() * 2)
    all_gather_single(everyone, mine)
    values, elements = everyone.view(-1, 2).unbind(1)
    found = combine(values, order)
    return (found / elements.sum() if name == "mean" else found).to(like)


#: Weights that optimizers are tried on, by number of dims: no 8-bit block ends where a part does.
_SHAPES = {1: (6001,), 2: (96, 65), 3: (96, 13, 5)}
_STEPS, _RATE, _TOLERANCE = 3, 0.1, 1e-5

_INSTEAD = (
    "use SGD, Adam, AdamW or another elementwise optimizer, a layout of which every rank holds all weights (ddp), or "
    "`shardwise train` with train.optimizer adafactor or adamw_8bit"
)


class Handed:
    """Parameters of a torch optimizer, watched at each of its steps. Of a weight that lies on
    another pipeline stage, a part without elements: so every rank has all names in one order, and
    norms over all of them are whole. `stepped`: what optimizers step in place of the model's
    parameters; `given`: parameters of the model that was given."""

    def __init__(self, stepped: Detour, *, ownership: Ownership, given: Iterable[nn.Parameter]) -> None:
        self._stepped, self._world = stepped, ownership.world
        placed = {name: whole for (name, _), whole in zip(stepped.named, stepped.placed, strict=True)}
        mine = {name: (tuple(whole.shape[1:]), whole.dtype) for name, whole in placed.items()}
        every = {name: kind for rank in gather(self._world, mine) for name, kind in rank.items()}
        parts = dict(stepped.named)
        for name, (rest, dtype) in every.items():
            parts.setdefault(name, nn.Parameter(torch.empty(0, *rest, dtype=dtype, device=self._world.device)))
        self.named: Named = [(name, parts[name]) for name in every]
        self._elsewhere = {id(parts[name]): parts[name] for name in every if name not in placed}
        self._counts = {name: name in placed and ownership.counts(name, placed[name]) for name in every}
        self._cut = any(sharded_dims(whole) for whole in placed.values())
        self._partial = self._cut or self._world.layout.pp > 1
        self._mine = {id(parameter) for _, parameter in self.named}
        self._given = weakref.WeakValueDictionary[int, nn.Parameter]({id(one): one for one in given})
        self._stepped_by: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._other: str | None = None
        self._before_any: dict[Any, int] | None = None
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

    def arrived(self) -> None:
        """After gradients of a step have arrived: makes them answer for whole weights."""
        self._answer_for_wholes(self._elsewhere.values())
        if self._before_any is None:
            self._before_any = part_hashes(self._stepped.named)

    def must_be_stepped(self) -> None:
        """Raises UnsupportedError: an optimizer was stepped since the first; nothing changed."""
        if self._stepped_by or self._other is None:
            return
        if not any(gather(self._world, part_hashes(self._stepped.named) != self._before_any)):
            raise UnsupportedError(
                f"{self._other} was stepped, but it holds no parameter of the parallelized model, of which none has "
                "changed since the last step; make the optimizer over model.parameters() of what parallelize returned"
            )

    def _answer_for_wholes(self, elsewhere: Iterable[nn.Parameter]) -> None:
        for parameter in elsewhere:
            parameter.grad = torch.zeros_like(parameter)
        for name, parameter in self.named if self._partial else ():
            if parameter.grad is not None:
                parameter.grad = Gradient.of(plain(parameter.grad), counts=self._counts[name])

    def _held(self, optimizer: torch.optim.Optimizer) -> dict[int, nn.Parameter]:
        return {id(parameter): parameter for parameter in _parameters_of(optimizer) if id(parameter) in self._mine}

    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Before any optimizer's step: plain gradients, of this rank. Raises UnsupportedError."""
        held = self._held(optimizer)
        if not held:
            kind = type(optimizer).__name__
            if any(self._given.get(id(parameter)) is parameter for parameter in _parameters_of(optimizer)):
                raise UnsupportedError(
                    f"{kind} holds parameters of the model that parallelize was given, which is empty now, so that "
                    "nothing would be trained; make the optimizer after parallelize, over model.parameters()"
                )
            self._other = kind
            return
        if self._partial and optimizer not in self._stepped_by:
            refuse_others(optimizer, held=held, cut=self._cut, layout=self._world.layout.strategy)
        self._stepped_by.add(optimizer)
        for key, parameter in held.items():
            if parameter.grad is not None:
                parameter.grad = None if key in self._elsewhere else plain(parameter.grad)

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """After it: exchanges what ranks have stepped, where the optimizer holds it."""
        held = self._held(optimizer)
        if held:
            self._stepped.after_step()
            self._answer_for_wholes(held[key] for key in self._elsewhere.keys() & held)


def _parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[nn.Parameter]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def refuse_others(
    optimizer: torch.optim.Optimizer, *, held: Mapping[int, nn.Parameter], cut: bool, layout: str
) -> None:
    """Raises UnsupportedError: what the optimizer does to an element depends on elements that other
    ranks hold. `held`: the parameters of its groups that are parts, by id; `cut`: weights are cut;
    if not, ranks hold some whole ones."""
    if any(isinstance(inner, torch.optim.Optimizer) for inner in vars(optimizer).values()):
        return  # stepped in turn, and tried then
    for group in optimizer.param_groups:
        for dims in {min(p.ndim, 3) for p in group["params"] if id(p) in held}:
            _try_parts(optimizer, group, dims=dims, cut=cut, layout=layout)


def _try_parts(optimizer: torch.optim.Optimizer, group: dict[str, Any], *, dims: int, cut: bool, layout: str) -> None:
    """Steps two weights, and beside them a part of the first alone, by the same gradients."""
    device, kind = group["params"][0].device, type(optimizer).__name__
    draw = torch.Generator().manual_seed(0)
    # Rows of very different size: a value over a part differs from the value over the whole.
    rows = torch.logspace(-2, 2, _SHAPES[dims][0]).view(-1, *(1,) * (dims - 1))
    weights = [(torch.randn(_SHAPES[dims], generator=draw) * rows).to(device) for _ in range(2)]
    gradients = [(torch.randn(_STEPS, *_SHAPES[dims], generator=draw) * rows).to(device) for _ in range(2)]
    share = _SHAPES[dims][0] * 5 // 8 if cut else _SHAPES[dims][0]
    try:
        whole = _stepped(optimizer, group, weights, gradients)
        alone = _stepped(optimizer, group, [weights[0][:share]], [gradients[0][:, :share]])
    except Exception as error:
        raise UnsupportedError(
            f"{kind} could not be tried ({type(error).__name__}: {error}), so that nobody knows whether it steps "
            f"element by element, as it must where ranks hold parts of the weights ({layout}); {_INSTEAD}"
        ) from error
    moved = whole - weights[0]
    if not torch.allclose(alone, whole[:share], rtol=_TOLERANCE, atol=_TOLERANCE * moved.abs().max().item() * 1e-2):
        raise UnsupportedError(
            f"{kind} does not step element by element: tried on random weights, it steps a part of them alone "
            f"otherwise than beside the rest, which other ranks hold here ({layout}); {_INSTEAD}"
        )


@torch.no_grad()
def _stepped(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], weights: list[torch.Tensor], gradients: list[torch.Tensor]
) -> torch.Tensor:
    """The first of some weights after a few steps of an optimizer of this class and settings."""
    parameters = [nn.Parameter(weight.clone()) for weight in weights]
    alike: Any = object.__new__(type(optimizer))  # a copy would leave out what an optimizer does not pickle
    vars(alike).update(vars(optimizer))
    alike.state = defaultdict(dict)
    # Some make states at construction: those of a parameter of this group, as before a step.
    for parameter in parameters:
        for key, value in optimizer.state.get(group["params"][0], {}).items():
            of_elements = isinstance(value, torch.Tensor) and value.ndim
            alike.state[parameter][key] = torch.zeros_like(parameter) if of_elements else copy.deepcopy(value)
    rate = {} if group.get("lr") is None else {"lr": _RATE}  # a schedule may begin at 0
    alike.param_groups = [{**group, "params": parameters, **rate}]
    alike._optimizer_step_pre_hooks, alike._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
    step = inspect.unwrap(type(optimizer).step)
    for index in range(_STEPS):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient[index].clone()
        step(alike)
    if torch.equal(parameters[0], weights[0]):
        raise RuntimeError(f"it changed nothing in {_STEPS} steps")
    return parameters[0].detach()
