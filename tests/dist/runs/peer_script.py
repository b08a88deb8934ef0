"""The scripts of people who stay with their trainer: a plain loop with Accelerate, and one with
DeepSpeed.

`peer_script.py accelerate|deepspeed SETTINGS.json`, one process for each rank. Writes the loss of
each step, a line each. Rows are tokens with shifted labels, as Shardwise prepared them, in their
order.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, get_scheduler

IGNORED = -100


def padded(rows: list[dict[str, list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and shifted labels, [rows, longest]."""
    longest = max(len(row["ids"]) for row in rows)
    ids = [row["ids"] + [0] * (longest - len(row["ids"])) for row in rows]
    labels = [row["labels"] + [IGNORED] * (longest - len(row["labels"])) for row in rows]
    return torch.tensor(ids), torch.tensor(labels)


def summed_loss(model: Any, rows: list[dict[str, list[int]]]) -> torch.Tensor:
    """Of the trained tokens."""
    ids, labels = padded(rows)
    logits = model(input_ids=ids, use_cache=False).logits.float()
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")


class Steps:
    """The rows of each step: all, and the micro-batches of one rank."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.rows = [json.loads(line) for line in Path(settings["rows"]).read_text().splitlines()]
        self.settings = settings

    def __iter__(self) -> Any:
        size, micro = self.settings["global_batch_size"], self.settings["micro_batch_size"]
        rank, ranks = dist.get_rank(), dist.get_world_size()
        for step in range(self.settings["max_steps"]):
            rows = self.rows[step * size : (step + 1) * size]
            blocks = [rows[start : start + micro] for start in range(0, size, micro)]
            yield sum(label != IGNORED for row in rows for label in row["labels"]), blocks[rank::ranks]


def note(settings: dict[str, Any], loss: torch.Tensor, trained: int) -> None:
    """The loss of a step, summed over ranks."""
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        with Path(settings["losses"]).open("a") as file:
            file.write(f"{float(loss) / trained!r}\n")


def groups(model: torch.nn.Module, decay: float) -> list[dict[str, Any]]:
    """Weight decay on matrices."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    return [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


def schedule_of(optimizer: Any, settings: dict[str, Any]) -> Any:
    """Transformers' own."""
    steps = {"num_warmup_steps": settings["warmup_steps"], "num_training_steps": settings["max_steps"]}
    return get_scheduler(settings["lr_scheduler_type"], optimizer, **steps)


def with_accelerate(settings: dict[str, Any]) -> None:
    """Spread by the configuration that `accelerate launch` was given."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    accelerator = Accelerator(cpu=True)
    # Accelerate shards over GPUs only; its state is told that these processes are as good.
    AcceleratorState._shared_state["distributed_type"] = DistributedType.FSDP
    AcceleratorState._shared_state["fsdp_plugin"] = FullyShardedDataParallelPlugin()
    model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32)
    optimizer = torch.optim.AdamW(groups(model, settings["weight_decay"]), lr=settings["learning_rate"])
    schedule = schedule_of(optimizer, settings)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.print("sharded as", next(model.parameters()).placements)
    for trained, mine in Steps(settings):
        total = torch.zeros(())
        for number, rows in enumerate(mine):
            accelerator.gradient_state._set_sync_gradients(number == len(mine) - 1)
            loss = summed_loss(model, rows)
            accelerator.backward(loss * dist.get_world_size() / trained)
            total += loss.detach()
        accelerator.clip_grad_norm_(model.parameters(), settings["max_grad_norm"])
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        note(settings, total, trained)


def with_deepspeed(settings: dict[str, Any]) -> None:
    """Spread by a configuration file."""
    import deepspeed

    model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32)
    engine, optimizer, *_ = deepspeed.initialize(
        model=model, model_parameters=groups(model, settings["weight_decay"]), config=settings["config"]
    )
    base = getattr(optimizer, "optimizer", optimizer)
    if dist.get_rank() == 0:
        print("stage", engine.zero_optimization_stage(), type(base).__name__)
    engine.lr_scheduler = schedule_of(base, settings)
    for trained, mine in Steps(settings):
        total = torch.zeros(())
        for rows in mine:
            loss = summed_loss(engine, rows)
            # The engine divides by ranks and forwards.
            engine.backward(loss * dist.get_world_size() * len(mine) / trained)
            engine.step()
            total += loss.detach()
        note(settings, total, trained)


if __name__ == "__main__":
    TRAINERS = {"accelerate": with_accelerate, "deepspeed": with_deepspeed}
    TRAINERS[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text()))
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may be ended inside C++ by the interpreter's shutdown, which aborts the process
