"""Which expert a token goes to: float32, without noise, balanced over the global batch if asked."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from shardwise.errors import UnsupportedError

#: What transformers calls the router beside a module of experts.
_ROUTERS = ("gate", "router")


class Balance:
    """The loss that keeps experts evenly used (Fedus et al., 2021), as transformers adds it where
    config.json says `output_router_logits`: coefficient * experts * sum over experts of its share
    of routes times its mean probability, over the tokens of all routers. Shares are constants in
    it, which a pass without gradients counts first: so its gradient is that of the global batch,
    whatever a rank, micro-batch or stage sees of it. `counting`: routers add to `seen`, float64 [2,
    experts], routes to each and sums of its probabilities, and not to gradients; `real`: bool
    [batch, length] for the block at work, what is no padding; `pull`: float32 [experts], the
    gradient of the loss to a token's probability of each."""

    def __init__(self, *, coefficient: float, num_experts: int, top_k: int, device: torch.device) -> None:
        self.coefficient, self.num_experts, self.top_k = coefficient, num_experts, top_k
        self.counting = False
        self.seen = torch.zeros(2, num_experts, dtype=torch.float64, device=device)
        self.real: Tensor | None = None
        self.pull = torch.zeros(num_experts, device=device)

    @classmethod
    def of(cls, config: Any, *, device: torch.device) -> Self | None:
        """Of a transformers configuration; None if not asked for, or its family's code has none."""
        coefficient = getattr(config, "router_aux_loss_coef", 0.0)
        if not coefficient or not _balances(config):
            return None
        number = getattr(config, "num_local_experts", None) or config.num_experts
        return cls(coefficient=coefficient, num_experts=number, top_k=config.num_experts_per_tok, device=device)

    def settle(self, *, factor: float) -> Tensor:
        """From what all ranks saw: sets `pull`, times its backward's factor. The loss, float64."""
        routes, probabilities = self.seen
        scale = self.coefficient * self.num_experts / (routes.sum() / self.top_k) ** 2
        self.pull = (scale * factor * routes).float()
        return scale * (routes * probabilities).sum()

    def attach(self, logits: Tensor, scores: Tensor) -> Tensor:
        """The scores of a router [tokens, top_k], with the gradient of the loss behind them. Routes
        are those to the most probable experts, as in transformers, whatever corrects the choice."""
        if self.real is None:
            return scores
        probabilities, real = logits.float().softmax(-1), self.real.flatten()
        if self.counting:
            likeliest = probabilities[real].topk(self.top_k).indices
            routes = torch.bincount(likeliest.flatten(), minlength=self.num_experts)
            self.seen += torch.stack([routes.double(), probabilities[real].double().sum(0)])
            return scores
        return _Attached.apply(scores, (probabilities * real.unsqueeze(1)) @ self.pull)  # pyright: ignore[reportReturnType]


def loss_left_out(config: Any) -> str:
    """Why a part of the loss that a transformers configuration asks for is not computed, or ""."""
    unknown = not hasattr(config, "router_aux_loss_coef") and _balances(config)
    asked = "output_router_logits: true" if unknown else "z_loss_coefficient"
    if not unknown and not getattr(config, asked, 0):
        return ""
    return f"{config.model_type} with {asked} adds to its loss what this version does not compute; leave that out of it"


def _balances(config: Any) -> bool:
    if not getattr(config, "output_router_logits", False):
        return False
    from transformers import AutoModelForCausalLM

    own, classes = type(config).__module__.replace(".configuration_", ".modeling_"), AutoModelForCausalLM._model_mapping
    code = import_module(classes[type(config)].__module__ if type(config) in classes else own)
    return hasattr(code, "load_balancing_loss_func")


class _Attached(torch.autograd.Function):
    """Gives a tensor back as it is; backward also goes into losses [n]."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, losses: Tensor) -> Tensor:
        ctx.losses = losses.shape, losses.device
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        shape, device = ctx.losses
        return gradients[0], torch.ones(shape, device=device)


class _Casts(TorchFunctionMode):
    """Casts operands of functions of these names to a dtype."""

    def __init__(self, names: tuple[str, ...], cast: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._names, self._cast = names, cast

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in self._names:
            args = tuple(self._cast(a) if isinstance(a, Tensor) else a for a in args)
        return func(*args, **(kwargs or {}))


class Mixture(NamedTuple):
    """A module that routes tokens to experts: `owner` calls `router` and passes its choice to
    `experts`, called with hidden states [tokens, width], indices and weights [tokens, top_k]."""

    owner: nn.Module
    router: nn.Module
    experts: nn.Module


def mixtures(model: nn.Module) -> Iterator[Mixture]:
    """Those of a model; of most, the module that stands in the place of the MLP."""
    for module in model.modules():
        parts = dict(module.named_children())
        router = next((parts[name] for name in _ROUTERS if name in parts), None)
        if router is not None and "experts" in parts:
            yield Mixture(module, router, parts["experts"])


def refuse_to_deal(model: nn.Module) -> None:
    """Raises UnsupportedError: experts are no stacks that a router's choice is handed to."""
    experts = [getattr(one.experts, "get_base_layer", lambda one=one: one.experts)() for one in mixtures(model)]
    if not experts or not all(hasattr(stacks, "num_experts") for stacks in experts):
        raise UnsupportedError(
            f"{type(model).__name__} does not hand what its routers chose to stacked experts, so that ep and tp cannot "
            "deal them among ranks; use fsdp"
        )


def route(model: nn.Module, *, compute: torch.dtype, balance: Balance | None) -> None:
    """Makes routers decide in float32, whatever autocast and the stored types are, on operands
    rounded to the compute type as in every layout; experts compute in that type, as autocast does
    for other matrices. No router draws noise, which would differ between layouts."""
    read = _read_by_transformers(model)
    for owner, router, experts in mixtures(model):
        for module in (owner, *router.modules()):
            module.train = partial(_without_noise, module, module.train)
            module.training = False
        counts = not read or isinstance(getattr(router, "get_base_layer", lambda one=router: one)(), read)
        router.forward = partial(_routed, router.forward, compute, balance if counts else None)
        if compute != torch.float32:
            experts.forward = partial(_cast, experts.forward, compute)


def _read_by_transformers(model: nn.Module) -> tuple[type, ...]:
    """Classes of routers that its loss reads: of some models not those that look tokens up."""
    said = (getattr(module, "_can_record_outputs", None) or {} for module in model.modules())
    found = (one["router_logits"] for one in said if "router_logits" in one)
    return tuple(getattr(one, "target_class", one) for one in found)


def noise_left_out(config: Any) -> str | None:
    """What a transformers configuration asks for that `route` omits, in a sentence, or None."""
    noise = {key: value for key, value in config.to_dict().items() if "jitter" in key}
    asked = [f"{key} {value:g}" for key, value in noise.items() if isinstance(value, float | int) and value > 0]
    if not asked:
        return None
    left_out = f"{config.model_type} routes without noise ({', '.join(asked)}), as in evaluation"
    return f"{left_out}: each rank would draw its own"


def _without_noise(module: nn.Module, train: Callable[[bool], nn.Module], mode: bool = True) -> nn.Module:
    """Switches what is inside, and leaves the module itself in evaluation."""
    train(mode)
    module.training = False
    return module


def _routed(
    forward: Callable[..., Any], compute: torch.dtype, balance: Balance | None, hidden: Tensor, *args: Any, **kw: Any
) -> Any:
    with torch.autocast(hidden.device.type, enabled=False), _Casts(("linear",), lambda a: a.to(compute).float()):
        made = forward(hidden, *args, **kw)
    if balance is None:
        return made
    logits, scores, chosen, *more = made
    return logits, balance.attach(logits, scores), chosen, *more


def _cast(forward: Callable[..., Any], compute: torch.dtype, *args: Any) -> Tensor:
    def cast(operand: Tensor) -> Tensor:
        return operand.to(compute) if operand.is_floating_point() else operand

    with _Casts(("_grouped_mm", "grouped_mm"), cast):
        return forward(*args)


def mark_real(blocks: Iterable[nn.Module], balance: Balance) -> None:
    """Makes blocks tell what of their tokens is no padding, in recomputation too."""
    for block in blocks:
        block.forward = partial(_marked, block.forward, balance)


def _marked(forward: Callable[..., Any], balance: Balance, *args: Any, real: Any = None, **kwargs: Any) -> Any:
    balance.real = real
    return forward(*args, **kwargs)
