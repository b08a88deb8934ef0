"""Tells a ledger what a training does, by hooks around blocks, loss and optimizer: the planner's names of instants."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from shardwise.models.anatomy import find_blocks
from shardwise.train.build import Build
from shardwise.train.loss import LossModule
from shardwise.train.rehearsing.ledger import Ledger


def follow_instants(built: Build, ledger: Ledger) -> None:
    """From now on the ledger's instant is what happens."""
    for root in built.model.spread.modules:
        for module in root.modules():
            if isinstance(module, LossModule):
                _follow_stage(module, ledger)
    built.optimizer.register_step_pre_hook(lambda *_: _turn(ledger, "optimizer step"))
    built.optimizer.register_step_post_hook(lambda *_: _turn(ledger, "between steps"))


def _follow_stage(root: LossModule, ledger: Ledger) -> None:
    model = cast(Any, root.model)
    blocks = find_blocks(getattr(model, model.base_model_prefix), num_layers=model.config.num_hidden_layers)
    for index, block in enumerate(blocks):
        if next(block.parameters(), None) is not None:
            _follow(block, ledger, before=f"forward of layer {index}", backward=f"backward of layer {index}")
    if root.head_loss is not None:
        _follow(root.head_loss, ledger, before="end of forward", backward="backward of the loss")


def _follow(module: nn.Module, ledger: Ledger, *, before: str, backward: str) -> None:
    def enter(*_: Any) -> None:
        _turn(ledger, before)

    def leave(_module: nn.Module, _inputs: Any, output: Any) -> None:
        made = output[0] if isinstance(output, tuple) else output
        if isinstance(made, torch.Tensor) and made.requires_grad:
            made.register_hook(lambda _: _turn(ledger, backward))

    module.register_forward_pre_hook(enter, prepend=True)
    module.register_forward_hook(leave, prepend=True)


def _turn(ledger: Ledger, instant: str) -> None:
    ledger.instant = instant
