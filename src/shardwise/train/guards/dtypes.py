"""Checks the dtypes of live weights, gradients and optimizer states against the precision that was asked for.

The dtypes of matrix products and reductions belong to no tensor that stays; they are reported as configured.
"""

from __future__ import annotations

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


class LiveTypes:
    """Checks dtypes of weights now, and those of gradients and states in the first steps. `stepped` are the optimizer's
    parameters (master weights). GuardError names the first tensor of another dtype."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Named, stepped: Stepped, *, execution: Execution
    ) -> None:
        self._optimizer = optimizer
        self._parameters = parameters
        self._stepped = stepped
        self._execution = execution
        self._gradients: set[torch.dtype] = set()
        self._unread = _READ_STEPS
        types = TYPES[execution.precision]
        self._check("the trained weight", _trained(parameters), asked=types.trainable)
        wide = [(name, p) for name, p in _frozen(parameters) if p.is_floating_point()]
        self._check("the frozen weight", wide, asked=types.frozen)
        self._check("the master weight", stepped.named, asked=types.trainable)
        optimizer.register_step_pre_hook(lambda *_: self._check_gradients(types.trainable))
        states = torch.float32 if execution.optimizer_rule.in_8_bits else types.trainable
        after_first_step(optimizer, lambda: self._check("the optimizer's", self._wide_states().items(), asked=states))

    def read_back(self) -> Kinds:
        """Dtypes by what they hold, read from live tensors; None for what does not exist."""
        return {
            "weights": _names(p for _, p in _trained(self._parameters)),
            "frozen": _names(p for _, p in _frozen(self._parameters)),
            "masters": _names(self._stepped.parameters),
            "gradients": _written(self._gradients),
            "optimizer": self._written_states(),
        }

    def as_configured(self) -> dict[str, str]:
        """Dtypes of matrix products and of gradient reduction."""
        compute = TYPES[self._execution.precision].compute
        return {"compute": type_name(compute), "reduction": self._reduction()}

    def _reduction(self) -> str:
        chosen, types = self._execution, TYPES[self._execution.precision]
        if not chosen.gathers_weights:
            return type_name(types.trainable)
        early = chosen.layout.tp > 1 and not chosen.postpones_reduction  # FSDP2 casts behind the sum over `tp`
        short = early and types.compute != torch.float32
        return f"float32, over tp {type_name(types.compute)}" if short else "float32"

    def start_line(self, read: Kinds) -> dict[str, str]:
        """What is known before the first step, and how; `read` is what all ranks read back."""
        asked = f"{type_name(TYPES[self._execution.precision].trainable)} (as asked; read back in the first step)"
        live = {name: kind for name, kind in read.items() if kind}
        states = {} if "optimizer" in live else {"gradients": asked, "optimizer": asked}
        return {**live, **states, **{name: f"{kind} (as configured)" for name, kind in self.as_configured().items()}}

    def _check_gradients(self, asked: torch.dtype) -> None:
        if self._unread:
            self._unread -= 1
            gradients = [(name, p.grad) for name, p in self._stepped.named if p.grad is not None]
            self._check("the gradient of", gradients, asked=asked)
            self._gradients = {local_part(gradient).dtype for _, gradient in gradients}

    def _wide_states(self) -> dict[str, torch.Tensor]:
        """States that are not in 8 bits."""
        return {name: state for name, state in self._states().items() if state.dtype != torch.uint8}

    def _written_states(self) -> str | None:
        names = {
            "8 bits" if state.dtype == torch.uint8 else type_name(state.dtype) for state in self._states().values()
        }
        return _joined(names)

    def _states(self) -> dict[str, torch.Tensor]:
        """Optimizer states, without counts of steps."""
        states = self._stepped.states(self._optimizer)
        return {f"{key} of {name}": state for name, key, state, _ in states if state.ndim}

    def _check(self, what: str, named: Iterable[tuple[str, torch.Tensor]], *, asked: torch.dtype) -> None:
        for name, tensor in named:
            found = local_part(tensor).dtype
            if found != asked:
                raise GuardError(
                    f"{what} {name} is stored in {type_name(found)}; train.precision {self._execution.precision} "
                    f"stores it in {type_name(asked)}. What was asked is not what runs"
                )


def together(ranks: Sequence[Kinds]) -> Kinds:
    """The dtypes of all ranks; a stage may hold nothing that is trained, or nothing frozen."""
    return {name: _joined(kind for rank in ranks for kind in (rank[name] or "").split("/")) for name in ranks[0]}


def _trained(parameters: Named) -> Named:
    return [(name, parameter) for name, parameter in parameters if parameter.requires_grad]


def _frozen(parameters: Named) -> Named:
    return [(name, parameter) for name, parameter in parameters if not parameter.requires_grad]


def _names(tensors: Iterable[torch.Tensor]) -> str | None:
    return _written({local_part(tensor).dtype for tensor in tensors})


def _written(types: set[torch.dtype]) -> str | None:
    return _joined("NF4" if dtype == torch.uint8 else type_name(dtype) for dtype in types)


def _joined(names: Iterable[str]) -> str | None:
    return "/".join(sorted({name for name in names if name})) or None
