"""Gradients that FSDP reduces once a step (`Execution.reduce_once`): unsharded ones, in the type of
the reduction, are added up until the last micro-batch's backward, which reduces them unit by unit.

What is alive when is read from torch 2.11's FSDP2 (`_fsdp_param_group.post_backward`, and in
`_fsdp_param` `to_accumulated_grad_if_needed` and `accumulate_unsharded_grad_if_needed`).
"""

from collections.abc import Iterator
from dataclasses import replace

from shardwise.plan.work import REDUCTION_BYTES, Scene
from shardwise.spec.layout.axes import stages_per_rank


def turns(scene: Scene) -> Iterator[Scene]:
    """The scene of each backward that its flight may stand for. Of a rank with several stages,
    whose last backwards differ in time, all gradients are taken to be unsharded throughout."""
    execution, flight = scene.work.execution, scene.flight
    if not execution.reduce_once or stages_per_rank(execution.layout.schedule) > 1:
        yield scene
    elif not flight.gradients:
        yield replace(scene, turn="first")
    else:
        if execution.gradient_accumulation_steps > 2:
            yield replace(scene, turn="between")
        alone = replace(flight, pairs=1, heads=1, forwards=flight.forwards and flight.pairs == 1)
        yield replace(scene, flight=alone, turn="last")


def kept_gradients(scene: Scene, *, passed: int) -> float:
    """Bytes of gradients once a backward has passed units of so many trained elements."""
    every = scene.part.inventory.trained_elements
    match scene.turn:
        case "first":
            return passed * REDUCTION_BYTES
        case "last":
            shards = scene.holding.gradients * passed / max(1, every)
            return (every - passed) * REDUCTION_BYTES + shards
        case _:
            return every * REDUCTION_BYTES


def adds_in_place(scene: Scene) -> bool:
    """Whether a weight's gradient is added to the unsharded one once made, waiting for no other."""
    return scene.turn in ("between", "last") and scene.work.types.compute == REDUCTION_BYTES
