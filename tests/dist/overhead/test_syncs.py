"""The host waits for its device once in a step, whatever the layout and however many micro-batches.

Here the host is the device, so a device is made up that counts: its tensors are the weights, what
the inputs are copied to, and whatever is computed of these.
"""

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardwise.parallel.ownership import local_part
from shardwise.parallel.single_stage import Inputs
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.train import loop
from shardwise.train.build import Build
from shardwise.train.step import GradientAccumulator
from shardwise.train.watching.watchdog import StopFlag
from tests.dist.cells import ZERO1, journal_of, prepare_cell, run_built, spread
from tests.marks import CI

#: Operators whose result has to be on the host before it can go on.
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique_consecutive", "_unique2")


class Device(TorchDispatchMode):
    """Where and how often the host waited for this device's tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.computes = False
        self._storages: dict[int, torch.UntypedStorage] = {}

    def hold(self, tensors: Any) -> None:
        """From here on they are this device's."""
        for tensor in _plain(tensors):
            storage = tensor.untyped_storage()
            self._storages[storage._cdata] = storage

    def holds(self, tensors: Any) -> bool:
        """Whether one of them is this device's."""
        return any(tensor.untyped_storage()._cdata in self._storages for tensor in _plain(tensors))

    def wait(self, what: str) -> None:
        """Notes the line of ours, or of a library, that waits."""
        frames = [f for f in traceback.extract_stack() if "/torch/" not in f.filename and f.filename != __file__]
        self.waits[f"{what} in {frames[-1].filename}:{frames[-1].lineno}"] += 1

    def __torch_dispatch__(self, operator: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        mine = self.holds((args, kwargs))
        name = operator._schema.name.partition("::")[2]
        by_mask = name in ("index", "index_put", "index_put_") and any(
            index.dtype in (torch.bool, torch.uint8) for index in _plain(args[1])
        )
        if mine and (name in WAITS or by_mask):
            self.wait(name)
        self.computes = True  # what an operator does inside is the device's own business
        made = operator(*args, **(kwargs or {}))
        self.computes = False
        if mine:
            aliased = [(a, one.alias_info) for a, one in zip(args, operator._schema.arguments, strict=False)]
            self.hold((made, [a for a, alias in aliased if alias is not None and alias.is_write]))
        return made


class Reads(TorchFunctionMode):
    """Counts what reads a tensor of the device without an operator."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in ("tolist", "numpy", "cpu", "__array__") and not self.device.computes and self.device.holds(args[0]):
            self.device.wait(name)
        return function(*args, **(kwargs or {}))


def _plain(tensors: Any) -> Iterator[torch.Tensor]:
    """What stores the tensors among some objects."""
    for leaf in tree_leaves(tensors):
        if isinstance(leaf, torch.Tensor):
            yield local_part(leaf)


@contextmanager
def counting(built: Build) -> Iterator[Device]:
    """Makes up the device, with the weights in its memory."""
    device = Device()
    device.hold([p for _, p in built.model.parameters])
    device.hold([b for module in built.model.spread.modules for b in module.buffers()])
    copied = GradientAccumulator._inputs

    def inputs(self: GradientAccumulator, micros: Any) -> list[Inputs]:
        there = deepcopy(copied(self, micros))
        device.hold([vars(one) | vars(one.targets) | vars(one.documents or one.targets) for one in there])
        return there

    GradientAccumulator._inputs = inputs
    with Reads(device), device:
        yield device


def _waits(built: Build) -> list[Counter[str]]:
    """By step, in a loop as it runs."""
    assert not any(isinstance(p, DTensor) for _, p in built.checkpoints.stepped.named), "it takes twice as long"
    begun: list[Counter[str]] = []
    with counting(built) as device:
        journal = journal_of(built)
        journal.stepping = lambda: begun.append(device.waits.copy())
        loop.train(built, start=0, journal=journal, stop=StopFlag())
    return [after - before for before, after in pairwise(begun)]


#: An execution, and whether rows are packed.
CELLS: dict[str, tuple[Execution, bool]] = {
    "single": (spread(micros=4), False),
    "single, frequencies by length": (spread(micros=4), False),
    "ddp, packed": (spread(Layout(dp_replicate=2), micros=4, attn_implementation="varlen"), True),
    "fsdp": (spread(Layout(dp_shard=2), micros=4), False),
    "fsdp, sgd, packed under a mask": (spread(Layout(dp_shard=2), micros=4, optimizer="sgd"), True),
    "zero1, recompute": (spread(Layout(dp_shard=2, **ZERO1), micros=4, gradient_checkpointing="full"), False),
    "tp": (spread(Layout(tp=2), micros=4), False),
    "1f1b": (spread(Layout(pp=2), micros=4), False),
}


MARKS = dict.fromkeys(("ddp, packed", "fsdp", "1f1b"), pytest.mark.core) | {"tp": CI}


@pytest.mark.parametrize("cell", [pytest.param(name, marks=MARKS.get(name, ())) for name in CELLS])
def test_the_host_waits_once_in_a_step(cell, make_job, tmp_path) -> None:
    chosen, packing = CELLS[cell]
    job = make_job(data={"packing": packing}, train={"max_steps": 4})
    if "frequencies" in cell:
        job = make_job(train={"max_steps": 4}, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    for waits in run_built(_waits, prepare_cell(job, tmp_path), chosen):
        assert [step.total() for step in waits] == [1] * 3, waits
