"""One rank's rehearsal: its part of a run is composed, of rows of full length and a model with only
file headers, and two steps are taken, on fake tensors."""

import gc
import json
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import _TYPES
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwise.data.micro_batches import GlobalBatch
from shardwise.data.store import DTYPES, OPTIONAL, VERSION
from shardwise.models.anatomy import find_blocks
from shardwise.models.known_ahead import replaced
from shardwise.models.load import build_on_meta, materialise, read_config
from shardwise.models.weights import Weights
from shardwise.parallel import gradients
from shardwise.parallel.fsdp import whole_gradients
from shardwise.parallel.mesh import World, lay_world
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import RunDirectory, write_json
from shardwise.train.build import Build, build
from shardwise.train.loop import launch
from shardwise.train.loss import LossModule
from shardwise.train.measuring.memory import Held, held
from shardwise.train.rehearsing.allocator import reserved_bytes
from shardwise.train.rehearsing.ledger import Allocation, Change, Ledger
from shardwise.train.saving.safetensors_writer import Entry, write_hole
from shardwise.train.watching.journal import Journal

#: Files are mapped into memory, and some systems map none that is larger than their memory.
_FILE_BYTES = 2**30


def write_rows(run: RunDirectory, job: Job, *, count: int) -> None:
    """data.json and its store: `count` samples, each the same row of `max_length` trained tokens,
    or twice it; of an answer to be compared the first token is a prompt."""
    length, folder, sides = job.data.max_length, run.root / "rows", job.sides
    arrays: dict[str, Any] = {
        "tokens": np.zeros(length),
        "trained": np.ones(length),
        "offsets": [0, length],
        "doc_file": [0],
        "doc_line": [1],
        "sample_offsets": np.arange(count + 1) * sides,
        "sample_docs": np.zeros(count * sides),
        "lengths": np.full(count, length),
        "counts": np.full(count, (length - 1) * sides),
        "sample_source": np.zeros(count),
    }
    folder.mkdir(parents=True)
    kinds = DTYPES | (OPTIONAL if job.objective == "kto" else {})
    arrays["doc_label"] = [True]
    stored = {name: np.asarray(arrays[name]).astype(kind) for name, kind in kinds.items()}
    for name, data in stored.items():
        data.tofile(folder / f"{name}.bin")
    files, sizes = ["a row of full length"], {name: data.nbytes for name, data in stored.items()}
    manifest = {"version": VERSION, "sizes": sizes, "files": files, "weights": [1.0], "sides": sides}
    write_json(folder / "manifest.json", {**manifest, "packed": job.data.packing, "max_length": length})
    train = {"folder": str(folder), "files": files, "num_samples": count, "num_tokens": count * sides * length}
    write_json(run.data, {"train": train, "eval": None, "padding_id": 0, "fingerprint": "rehearsal"})


def write_model(folder: Path, config: dict[str, Any], *, dtype: torch.dtype) -> Path:
    """A model folder for a config.json: the weights that transformers builds of it, as files that
    take no space. Raises ModelError, UnsupportedError: there is no such model."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    model = build_on_meta(read_config(folder), attn_implementation="eager")
    files: list[dict[str, Entry]] = [{}]
    held = 0
    for name, parameter in model.named_parameters():
        if held >= _FILE_BYTES:
            files.append({})
            held = 0
        files[-1][name] = entry = Entry(dtype=dtype, shape=tuple(parameter.shape))
        held += entry.nbytes
    for number, entries in enumerate(files):
        write_hole(folder / f"model-{number}.safetensors", entries)
    weight_map = {name: f"model-{number}.safetensors" for number, entries in enumerate(files) for name in entries}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


#: The second has optimizer states.
_STEPS = 2
#: Groups of alike tensors that are named.
_NAMED = 12


def rehearse_rank(
    job: Job, execution: Execution, *, rank: int, casts: bool, copies: bool, prepared: RunDirectory | None = None
) -> dict[str, Any]:
    """Takes two steps of a job, whose model is a folder, on one rank. `casts`, `copies`: as of
    `Ledger`; `prepared`: a run whose rows are taken, for all steps; else they are as long as may
    be. Returns the fields of `RankRehearsal`, without ranks, and `step_peaks`."""
    ledger = Ledger(casts=casts, copies=copies)
    if prepared is None:
        job, execution = two_steps(job, execution)
    with tempfile.TemporaryDirectory() as root, alone(execution.layout, rank=rank) as world:
        run = prepared or RunDirectory(Path(root))
        if prepared is None:
            write_rows(run, job, count=job.train.global_batch_size)
        now, begun = _rehearsed(run, job, execution, world=world, ledger=ledger)
        return _summary(now, ledger.changes, begun=begun)


def _summary(now: Held, changes: Sequence[Change], *, begun: Sequence[int]) -> dict[str, Any]:
    """`now`: what is held after a step, with gradients; `begun`: changes before each step."""
    total = list(accumulate(change.delta for change in changes))
    at, high = max(range(len(total)), key=total.__getitem__), dict[str, int]()
    for change, there in zip(changes, total, strict=True):
        high[change.instant] = max(high.get(change.instant, 0), there)
    alive: Counter[int] = Counter()
    allocations: dict[int, Allocation] = {}
    for change in changes[: at + 1]:
        alive[id(change.allocation)] += change.delta
        allocations[id(change.allocation)] = change.allocation
    at_peak = [(allocations[key], size) for key, size in alive.items() if size]
    parts: Counter[str] = Counter()
    for allocation, size in at_peak:
        parts[allocation.part] += size
    return {
        "held": {"weights": now.weights, "gradients": now.gradients, "optimizer": now.optimizer},
        "peak_bytes": sum(parts.values()),
        "peak_reserved_bytes": reserved_bytes(changes),
        "peak_instant": changes[at].instant,
        "parts": dict(parts),
        "instants": high,
        "step_peaks": [max(total[start:end]) for start, end in pairwise([*begun, len(changes)])],
        "tensors": _alike(at_peak),
    }


def two_steps(job: Job, execution: Execution) -> tuple[Job, Execution]:
    """A job of two steps, with as few micro-batches as fill memory as all of them do."""
    layout, micros = execution.layout, execution.gradient_accumulation_steps
    if layout.schedule not in ("gpipe", "interleaved") or layout.pp == 1:
        micros = min(micros, layout.pp + 1)
    size = execution.micro_batch_size * layout.data_world_size * micros
    train = job.train.model_copy(update={"global_batch_size": size, "max_steps": _STEPS, "report_to": []})
    return job.model_copy(update={"train": train}), replace(execution, gradient_accumulation_steps=micros)


@contextmanager
def alone(layout: Layout, *, rank: int, device: torch.device | None = None) -> Iterator[World]:
    """A process group of the layout's size with only this process, by default on the CPU."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world_size)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of timeouts, which a fake group has not
            world = lay_world(layout, rank=rank, device=device or torch.device("cpu"), control="fake")
        with replaced((gradients, "DistributedDataParallel", _Alone)):
            yield world
    finally:
        dist.destroy_process_group()
        gc.collect()


class _Alone(DistributedDataParallel):
    """DDP whose reduction has a result, which a fake process group's has not."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # torch reads a hook's annotations, and a lambda has none.
        self.register_comm_hook(None, lambda _state, bucket: _done(bucket))


def _done(bucket: Any) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _rehearsed(
    run: RunDirectory, job: Job, execution: Execution, *, world: World, ledger: Ledger
) -> tuple[Held, tuple[int, ...]]:
    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    with ExitStack() as modes:

        def fill(model: nn.Module, *, weights: Weights, **given: Any) -> None:
            """Materialises without reading. What exists is on the meta device, which is no fake."""
            if not ledger.is_on:
                modes.enter_context(fakes)
                modes.enter_context(ledger)
            vars(weights)["read"] = lambda name, *, offsets, lengths: torch.empty(  # noqa: ARG005
                tuple(lengths), dtype=_TYPES[weights.type(name)]
            )
            materialise(model, weights=weights, **given)
            ledger.take_in_buffers(model, fakes)

        built = build(run, job, execution, world=world, journal=Journal(run=run, rank=world.rank), fill=fill)
        return _stepped(built, ledger, fakes)


def _follow_instants(built: Build, ledger: Ledger) -> None:

    def turn(instant: str) -> None:
        ledger.instant = instant

    def follow(module: nn.Module, *, forward: str, backward: str) -> None:
        def leave(_module: nn.Module, _inputs: Any, output: Any) -> None:
            made = output[0] if isinstance(output, tuple) else output
            if isinstance(made, torch.Tensor) and made.requires_grad:
                made.register_hook(lambda _: turn(backward))

        module.register_forward_pre_hook(lambda *_: turn(forward), prepend=True)
        module.register_forward_hook(leave, prepend=True)

    for root in (m for spread in built.model.spread.modules for m in spread.modules() if isinstance(m, LossModule)):
        backbone: Any = root.backbone
        blocks = find_blocks(backbone, num_layers=backbone.config.num_hidden_layers)
        for index, block in enumerate(blocks):
            if next(block.parameters(), None) is not None:
                follow(block, forward=f"forward of layer {index}", backward=f"backward of layer {index}")
        if root.head_loss is not None:
            follow(root.head_loss, forward="end of forward", backward="backward of the loss")
    built.optimizer.register_step_pre_hook(lambda *_: turn("optimizer step"))
    built.optimizer.register_step_post_hook(lambda *_: turn("between steps"))


def _stepped(built: Build, ledger: Ledger, fakes: FakeTensorMode) -> tuple[Held, tuple[int, ...]]:
    _follow_instants(built, ledger)
    gradients: list[int] = []
    begun: list[int] = []

    def tag(*_: Any) -> None:
        gradients.append(ledger.tag([p.grad for p in built.model.trainable if p.grad is not None], "gradients"))
        ledger.tag((p for _, p in built.model.parameters), "weights")

    def waiting(root: nn.Module, *_: Any) -> None:
        ledger.tag(whole_gradients(root), "gradients")

    # Before the hooks that hand gradients on.
    built.optimizer.register_step_pre_hook(tag)
    hooks: Any = built.optimizer._optimizer_step_pre_hooks
    hooks.move_to_end(next(reversed(hooks)), last=False)
    for root in built.model.spread.modules:
        root.register_forward_pre_hook(waiting)
    ledger.tag((p for _, p in built.model.parameters), "weights")
    for batch in built.batches.from_(0):
        ledger.instant = "forward"
        begun.append(len(ledger.changes))
        update = launch(built, _faked(batch, fakes))
        update.figures  # noqa: B018 - as the loop reads them
        every = (one for state in built.optimizer.state.values() for one in state.values())
        ledger.tag((one for one in every if isinstance(one, torch.Tensor)), "optimizer")
        del update
    now = held((p for _, p in built.model.parameters), built.optimizer)
    return replace(now, gradients=max(gradients, default=0)), tuple(begun)


def _faked(batch: GlobalBatch, fakes: FakeTensorMode) -> GlobalBatch:
    """What a forward reads, without numbers; labels have them: the host chooses among positions."""
    made = fakes.from_tensor
    micros = (replace(m, input_ids=made(m.input_ids), position_ids=made(m.position_ids)) for m in batch.micro_batches)
    return replace(batch, micro_batches=tuple(micros))


def _alike(there: Sequence[tuple[Allocation, int]]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[int]] = {}
    for one, size in there:
        groups.setdefault((one.part, one.maker, one.dtype, one.shape), []).append(size)
    largest = sorted(groups.items(), key=lambda group: -sum(group[1]))[:_NAMED]
    return [
        {"part": part, "maker": maker, "dtype": dtype, "shape": shape, "count": len(sizes), "bytes": sum(sizes)}
        for (part, maker, dtype, shape), sizes in largest
    ]
