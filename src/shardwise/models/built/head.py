"""Whether logits are the head's output, seen with hidden states in place of the backbone's."""

from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shardwise.models.anatomy import Anatomy

_SHAPED = frozenset({"view", "_unsafe_view", "reshape", "transpose", "permute", "t", "expand", "unsqueeze", "squeeze"})
_CUT = frozenset({"slice", "split", "split_with_sizes", "chunk", "select", "unbind"})
#: Operators that give what they are given, in another form, or a part of it.
VIEWS = _SHAPED | _CUT | frozenset({"alias", "detach", "clone", "new_empty"})


class _Backbone:
    """What a backbone returns, with nothing in it but hidden states."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, _index: int) -> torch.Tensor:
        return self.last_hidden_state

    def __getattr__(self, _name: str) -> None:
        return None


class _Between(TorchDispatchMode):
    """The operators that run outside of the head."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.inside = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.inside:
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def is_plain(anatomy: Anatomy, *, width: int) -> bool:
    """Whether logits are `head(hidden)`. `width`: of `hidden`. False if code cannot be followed."""
    model, between = cast(Any, anatomy.model), _Between()
    made = _Backbone(torch.empty(1, 4, width, device="meta"))
    ids = torch.empty(1, 4, dtype=torch.long, device="meta")

    hooks = [
        anatomy.head.register_forward_pre_hook(lambda *_: setattr(between, "inside", True)),
        anatomy.head.register_forward_hook(lambda *_: setattr(between, "inside", False)),
    ]

    def give(*_args: Any, **_words: Any) -> _Backbone:
        between.names.clear()  # of what a wrapper runs before
        return made

    vars(anatomy.backbone)["forward"] = give
    try:
        with torch.no_grad(), between:
            logits = model(input_ids=ids, use_cache=False).logits
    except Exception:  # noqa: BLE001 - whatever a model's code raises of what it is given
        return False
    finally:
        del vars(anatomy.backbone)["forward"]
        for hook in hooks:
            hook.remove()
    return logits.shape[-1] == anatomy.head.get_parameter("weight").shape[0] and set(between.names) <= VIEWS
