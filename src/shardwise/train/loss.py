"""The root module: a model or pipeline stage that returns the summed token loss of a micro-batch.

A sum, because the loss is divided by the trained tokens of the global batch.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from shardwise.data.micro_batches import Documents
from shardwise.methods.lora import is_adapter
from shardwise.models.anatomy import Anatomy
from shardwise.parallel.experts import RealRows
from shardwise.spec.support.attention import BY_DOCUMENT
from shardwise.train.cross_entropy import Chunks, Targets, Whole, any_loss, linear_loss
from shardwise.train.precision import Dtypes, cast_activations


class LossModule(nn.Module):
    """A causal language model that returns its summed token loss, a float32 scalar; without
    `makes_loss` hidden states. `first_block`: the stage's; `rows`: are told what is no padding."""

    def __init__(
        self,
        anatomy: Anatomy,
        *,
        types: Dtypes,
        chunk: int,
        plain: bool = True,
        compiled: bool = False,
        first_block: int = 0,
        makes_loss: bool = True,
        rows: RealRows | None = None,
    ) -> None:
        super().__init__()
        self.model = anatomy.model
        self._backbone = anatomy.backbone_name
        self._types, self._rows = types, rows
        self._told_documents = cast(Any, anatomy.backbone).config._attn_implementation in BY_DOCUMENT
        self.head_loss = HeadLoss(anatomy, chunk=chunk, plain=plain, compiled=compiled) if makes_loss else None
        if types.autocasts:
            cast_activations(anatomy, first_block=first_block, dtype=types.compute)

    @property
    def backbone(self) -> nn.Module:
        """The model, or the stage of it, without its head."""
        return self.model.get_submodule(self._backbone)

    def forward(
        self,
        *,
        position_ids: torch.Tensor,
        input_ids: torch.Tensor | None = None,
        hidden: torch.Tensor | None = None,
        targets: Targets | None = None,
        documents: Documents | None = None,
        real: torch.Tensor | None = None,
        places: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Sums the loss over the trained positions; a stage without the head returns hidden states.
        `position_ids`: [batch, length], restart where a packed document begins; `input_ids`:
        [batch, length], or `hidden`: [batch, length, width] from the stage before; `documents`:
        where packed ones lie, for some kernels; `real`: [batch, length], no padding, for balanced
        routers, and `places`: int64 [n], where in the flattened rows it is, for experts."""
        if self._rows is not None:
            trained = None if targets is None or not len(targets.labels) else targets.positions
            self._rows.places, self._rows.trained, self._rows.count = places, trained, position_ids.numel()
        backbone = cast(Any, self.backbone)
        inputs: dict[str, Any] = {"input_ids": input_ids} if hidden is None else {"inputs_embeds": hidden}
        if documents is not None and self._told_documents:
            inputs |= documents.words
        if real is not None:
            inputs["real"] = real
        if getattr(backbone.config, "output_router_logits", False):
            inputs["output_router_logits"] = False  # nobody reads them here
        with torch.autocast(position_ids.device.type, dtype=self._types.compute, enabled=self._types.autocasts):
            # Without the model's own head, which would make logits of all positions at once.
            made = backbone(**inputs, position_ids=position_ids, use_cache=False).last_hidden_state
            if targets is None or self.head_loss is None:
                return made
            return self.head_loss(made.flatten(0, 1), targets)


class HeadLoss(nn.Module):
    """The head and its summed loss. One call a micro-batch, however often it calls the head: FSDP
    gathers the head's weight for it and reduces its gradient once. `chunk`: positions at once;
    `plain`: logits are the head's output; `takes_slices`: the head may be sliced over its tokens
    (`Vocabulary`), and its logits stay where they are made."""

    def __init__(self, anatomy: Anatomy, *, chunk: int, plain: bool, compiled: bool = False) -> None:
        super().__init__()
        self.head, self._chunk, self._compiled = anatomy.head, chunk, compiled
        plain = plain and anatomy.plain_head
        self._logits = None if plain else _behind_backbone(anatomy)
        others = [m for m in anatomy.language.children() if anatomy.backbone not in m.modules()]
        self._beside = [] if plain else others  # in a list, so that they are no parts of this module too
        adapted = any(is_adapter(f".{name}") for name, _ in self.head.named_parameters())
        linear = [module for module in self.head.modules() if type(module) is nn.Linear]
        self.takes_slices = plain and bool(linear) and not adapted
        for module in linear if self.takes_slices else ():
            vars(module)["forward"] = partial(_linear_forward, module)

    def forward(self, hidden: torch.Tensor, targets: Targets) -> torch.Tensor:
        """Of hidden states [batch * length, width]."""
        chunks = Chunks(**vars(targets), size=self._chunk, compiled=self._compiled)
        if self.takes_slices:
            return self.head(hidden, chunks)
        weights = dict.fromkeys(p for module in (self.head, *self._beside) for p in module.parameters())
        trained = [parameter for parameter in weights if parameter.requires_grad]
        return any_loss(hidden, chunks, logits=self._logits or self.head, parameters=trained)


def _linear_forward(head: nn.Linear, hidden: torch.Tensor, chunks: Chunks | None = None) -> torch.Tensor:
    """The forward of a linear head; with chunks the loss, which then runs within what surrounds a
    module's forward, such as gathering its weight or taking a slice of it."""
    if chunks is None:
        return F.linear(hidden, head.weight, head.bias)
    vocabulary = getattr(head, "vocabulary", Whole())
    return linear_loss(hidden, chunks, weight=head.weight, bias=head.bias, vocabulary=vocabulary)


def _behind_backbone(anatomy: Anatomy) -> Callable[[torch.Tensor], torch.Tensor]:
    """A model's way from hidden states [n, width] to logits: a copy without its backbone."""
    from transformers.modeling_outputs import BaseModelOutput

    class Output(BaseModelOutput):
        """What backbones give beside hidden states is passed on by heads, and not there."""

        def __getattr__(self, name: str) -> None:
            if name.startswith("__"):
                raise AttributeError(name)

    class Returning:
        """In the place of the backbone, of which some models read numbers in their own forward."""

        def __call__(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> Output:
            return Output(last_hidden_state=inputs_embeds)

        def __getattr__(self, name: str) -> Any:
            return getattr(backbone, name)

    rest: Any = copy.copy(anatomy.language)
    holder, backbone = next((n, child) for n, child in rest.named_children() if anatomy.backbone in child.modules())
    rest._modules = {name: module for name, module in rest._modules.items() if name != holder}
    vars(rest)[holder] = Returning()
    return lambda hidden: rest(inputs_embeds=hidden.unsqueeze(0), use_cache=False).logits.squeeze(0)
