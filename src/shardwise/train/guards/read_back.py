"""Checks devices and dtypes of live weights, gradients and optimizer states against the request.

The dtypes of matrix products and reductions belong to no tensor that stays; they are reported as
configured.
"""

from collections.abc import Iterable, Sequence

import torch

from shardwise.parallel.optimizer.stepped import Named, Stepped
from shardwise.parallel.ownership import local_part
from shardwise.spec.layout.execution import Execution
from shardwise.train.guards.checks import GuardError, after_first_step
from shardwise.train.precision import TYPES, type_name

#: Optimizer steps whose gradients are checked: after a resume the first one only creates states.
_READ_STEPS = 2

#: What is held -> its dtypes, joined by `/`; None where it does not exist.
Kinds = dict[str, str | None]


def read_back_places(
    optimizer: torch.optim.Optimizer, parameters: Named, stepped: Stepped, *, execution: Execution, device: torch.device
) -> None:
    """Checks devices now, and of optimizer states after the first step; GuardError names one."""
    asked, host = f"train.offload is {execution.offload}", torch.device("cpu")

    def check(what: str, named: Iterable[tuple[str, torch.Tensor]], *, on_host: bool) -> None:
        place = (host if on_host else device).type
        for name, tensor in named:
            if (found := local_part(tensor).device.type) != place:
                raise GuardError(
                    f"{what} {name} lies in the memory of {found}; {asked}, which puts it into that of {place}. What "
                    "was asked is not what runs"
                )

    check("the weight", parameters, on_host=execution.parameters_on_host)
    check("what the optimizer steps of", stepped.named, on_host=execution.optimizer_on_host)
    if execution.optimizer_on_host and not execution.parameters_on_host:
        weights = {local_part(p).untyped_storage().data_ptr() for _, p in parameters if local_part(p).numel()}
        for name, local in ((name, local_part(parameter)) for name, parameter in stepped.named):
            if local.numel() and local.untyped_storage().data_ptr() in weights:
                raise GuardError(
                    f"the optimizer steps {name} itself and no copy of it; {asked}, which steps copies in the host's "
                    "memory. What was asked is not what runs"
                )
    states_on_host = execution.optimizer_on_host
    after_first_step(optimizer, lambda: check("the optimizer's", _states(optimizer, stepped), on_host=states_on_host))


class LiveTypes:
    """Checks dtypes of weights now, of gradients and states in the first steps. `stepped`: the
    optimizer's parameters (master weights). GuardError names the first tensor of another dtype."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Named, stepped: Stepped, *, execution: Execution
    ) -> None:
        self._optimizer, self._stepped, self._execution = optimizer, stepped, execution
        self._trained = [(name, p) for name, p in parameters if p.requires_grad]
        self._frozen = [(name, p) for name, p in parameters if not p.requires_grad]
        self._gradients: set[torch.dtype] = set()
        self._unread = _READ_STEPS
        types = TYPES[execution.precision]
        self._check("the trained weight", self._trained, asked=types.trainable)
        wide = [(name, p) for name, p in self._frozen if p.is_floating_point()]
        self._check("the frozen weight", wide, asked=types.frozen)
        self._check("the master weight", stepped.named, asked=types.trainable)
        optimizer.register_step_pre_hook(lambda *_: self._check_gradients(types.trainable))
        states = torch.float32 if execution.optimizer_rule.in_8_bits else types.trainable
        after_first_step(optimizer, lambda: self._check("the optimizer's", self._wide_states(), asked=states))

    def read_back(self) -> Kinds:
        """Dtypes by what they hold, read from live tensors; None for what does not exist."""
        states = {state.dtype for _, state in _states(self._optimizer, self._stepped)}
        return {
            "weights": _names(p for _, p in self._trained),
            "frozen": _names(p for _, p in self._frozen),
            "masters": _names(p for _, p in self._stepped.named),
            "gradients": _written(self._gradients),
            "optimizer": _written(states, bytes_are="8 bits"),
        }

    def as_configured(self) -> dict[str, str]:
        """Dtypes of matrix products and of gradient reduction."""
        chosen, types = self._execution, TYPES[self._execution.precision]
        reduction = "float32" if chosen.gathers_weights else type_name(types.trainable)
        early = chosen.layout.tp > 1 and not chosen.postpones_reduction  # FSDP2 casts behind the sum over `tp`
        if chosen.gathers_weights and early and types.compute != torch.float32:
            reduction += f", over tp {type_name(types.compute)}"
        return {"compute": type_name(types.compute), "reduction": reduction}

    def start_line(self, read: Kinds) -> dict[str, str]:
        """What is known before the first step, and how; `read` is what all ranks read back."""
        asked = f"{type_name(TYPES[self._execution.precision].trainable)} (as asked; read back in the first step)"
        live = {name: kind for name, kind in read.items() if kind}
        states = {} if "optimizer" in live else {"gradients": asked, "optimizer": asked}
        return {**live, **states, **{name: f"{kind} (as configured)" for name, kind in self.as_configured().items()}}

    def _check_gradients(self, asked: torch.dtype) -> None:
        # Types do not change later, and reading all gradients takes time of each step.
        if self._unread:
            self._unread -= 1
            gradients = [(name, p.grad) for name, p in self._stepped.named if p.grad is not None]
            self._check("the gradient of", gradients, asked=asked)
            self._gradients = {local_part(gradient).dtype for _, gradient in gradients}

    def _wide_states(self) -> list[tuple[str, torch.Tensor]]:
        return [(name, one) for name, one in _states(self._optimizer, self._stepped) if one.dtype != torch.uint8]

    def _check(self, what: str, named: Iterable[tuple[str, torch.Tensor]], *, asked: torch.dtype) -> None:
        for name, tensor in named:
            if (found := local_part(tensor).dtype) != asked:
                raise GuardError(
                    f"{what} {name} is stored in {type_name(found)}; train.precision {self._execution.precision} "
                    f"stores it in {type_name(asked)}. What was asked is not what runs"
                )


def together(ranks: Sequence[Kinds]) -> Kinds:
    """The dtypes of all ranks; a stage may hold nothing that is trained, or nothing frozen."""
    return {name: _joined(kind for rank in ranks for kind in (rank[name] or "").split("/")) for name in ranks[0]}


def _states(optimizer: torch.optim.Optimizer, stepped: Stepped) -> list[tuple[str, torch.Tensor]]:
    """Optimizer states by `key of weight`. Step counts have the optimizer's device and dtype."""
    return [(f"{key} of {name}", state) for name, key, state, _ in stepped.states(optimizer) if state.ndim]


def _names(tensors: Iterable[torch.Tensor]) -> str | None:
    return _written({local_part(tensor).dtype for tensor in tensors})


def _written(types: set[torch.dtype], *, bytes_are: str = "NF4") -> str | None:
    return _joined(bytes_are if dtype == torch.uint8 else type_name(dtype) for dtype in types)


def _joined(names: Iterable[str]) -> str | None:
    return "/".join(sorted({name for name in names if name})) or None
