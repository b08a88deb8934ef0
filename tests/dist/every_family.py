"""A tiny model of a family put to the product: its count, and each way to train it."""

from __future__ import annotations

import json
import math
import random
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import peft
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

import shardwise.train.model
from shardwise.errors import InputError, UnsupportedError, said
from shardwise.models.built.shape import built_shape, shape_of
from shardwise.models.wrapper import find_inside
from shardwise.plan.work.inventory import take_inventory
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import RunDirectory
from shardwise.spec.support.trained import execution_refusals
from tests.dist.cells import LAYOUTS, composed, job_on, outcome, prepare_cell, spread, train_on
from tests.dist.compare import relative
from tests.dist.tiny import tiny_config
from tests.dist.worlds import add_tokenizer, correct_routers, run_world

#: Ways of training by name: the layout, and whether rows are packed.
WAYS: dict[str, tuple[Layout, bool]] = {
    "single": (Layout(), False),
    "packed": (Layout(), True),
    "ddp": (Layout(dp_replicate=2), False),
    **{name: (layout, False) for name, layout in LAYOUTS.items() if name not in ("single", "ddp")},
    "ep": (Layout(dp_shard=2, ep=2), False),
}
METHODS = ("full", "lora")

STEPS = 2

#: Of a loss, and of a gradient norm, over a step's.
SAME_FIGURE = 1e-5
#: Of what steps did to a weight, or of a gradient; and what float32 rounds of the weight.
SAME_WEIGHT, ROUNDED = 1e-3, 4e-7


def put(family: str, root: Path, rows: Path, *, ways: tuple[str, ...]) -> dict[str, Any]:
    """What became of a family: `class`, `count`, `planned` or `refused`, and under `cells` by
    method and way `equal`, or a sentence that begins with `refused`, `differs` or `failed`. `rows`:
    of `make_rows`."""
    found: dict[str, Any] = {"cells": {}}
    folder = root / "model"
    try:
        config = tiny_config(family)
        torch.manual_seed(0)
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        found["class"] = type(model).__name__
        found["count"] = _count(model)
        correct_routers(model)
        for name, weight in model.named_parameters():  # as learned, where code does not scale scores
            weight.data *= 0.25 if family.startswith("gemma4") and name.endswith("q_norm.weight") else 1
        model.save_pretrained(folder)
    except Exception as error:  # noqa: BLE001 - whatever a family raises, it has no tiny model
        try:
            built_shape({"model_type": family}, file="config.json")
        except (InputError, UnsupportedError) as refused:
            return {**found, "refused": _sentence(refused, folder)}
        return {**found, "unbuilt": f"{type(error).__name__}: {said(error)}"}
    add_tokenizer(folder, rows.read_text().splitlines())
    try:
        shape = _shape(str(folder))
    except (InputError, UnsupportedError) as error:
        return {**found, "refused": _sentence(error, folder)}
    except Exception as error:  # noqa: BLE001 - a fault of ours is a line of the table too
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        return {**found, "refused": f"failed: {type(error).__name__}: {said(error)} ({where})"}
    found["planned"] = shape.num_parameters
    shardwise.train.model.shape_of = lambda name, **_: _shape(name)  # built once, and not for each way
    cells = _Cells(root=root, folder=folder, rows=rows)
    found["cells"] = {f"{m}/{way}": said_of for m, way, said_of in cells.all(ways)}
    return found


def _count(model: Any) -> int:
    """Parameters of a language model, also where it lies in a model of more."""
    try:
        inside = find_inside(model)
    except UnsupportedError:  # which is refused
        inside = None
    return sum(p.numel() for name, p in model.named_parameters() if inside is None or inside.holds(name))


@cache
def _shape(name: str) -> Any:
    return shape_of(name)


class _Cells:
    """The cells of one model."""

    def __init__(self, *, root: Path, folder: Path, rows: Path) -> None:
        self._root, self._folder, self._rows = root, folder, rows
        self._shape = _shape(str(folder))
        self._kernel = "eager" if self._shape.eager_attention else "sdpa"

    def all(self, ways: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
        """(method, way, what became of it)."""
        for method in METHODS:
            known, runs = dict[str, Any](), dict[str, tuple[RunDirectory, Execution]]()
            for way in ways:
                job, chosen = self._asked(method, way)
                reasons = execution_refusals(job, chosen, model=self._shape)
                if reasons:
                    known[way] = UnsupportedError("; ".join(reasons))
                else:
                    runs[way] = prepare_cell(job, self._root / f"{method}-{way}"), chosen
            for size, work in ((1, _one), (2, _trained), (4, _trained)):
                of = [way for way, (_, chosen) in runs.items() if chosen.layout.world_size == size]
                known.update(zip(of, _ran(size, work, [runs[way] for way in of]), strict=True))
            for way in ways:
                yield method, way, self._told(known[way], known["single"])

    def _asked(self, method: str, way: str) -> tuple[Job, Execution]:
        layout, packed = WAYS[way]
        chosen = spread(layout, micros=2 if layout.pp > 1 else 1, optimizer="sgd", attn_implementation=self._kernel)
        data = {"path": str(self._rows), "max_length": 64, "over_long": "truncate", "packing": packed}
        train = {"max_steps": STEPS, "learning_rate": 0.1, "lr_scheduler_type": "constant"}
        train |= {"optimizer": "sgd", "disable_dropout": True}
        return job_on(self._folder, method=method, data=data, train=train), chosen

    def _told(self, found: Any, single: Any) -> str:
        if isinstance(found, UnsupportedError):
            return f"refused: {_sentence(found, self._folder)}"
        if isinstance(found, str):
            return found
        if len(found) == 1:
            return f"differs from transformers: {found[0][0]}" if found[0][0] else "equal"
        if isinstance(single, UnsupportedError):
            return self._told(single, single)
        if isinstance(single, str) or single[0][0]:
            return "not run: one process was not right"
        differs = unlike(single[0][1], found)
        return f"differs from one process: {differs}" if differs else "equal"


def _ran(size: int, work: Callable[..., Any], cells: list[tuple[RunDirectory, Execution]]) -> list[Any]:
    """Of each cell what its ranks made, or why not; in one world, or else each in its own."""
    try:
        ranks = run_world(size, _each, work, cells) if cells else []
    except (AssertionError, EOFError) as error:
        if len(cells) == 1:
            return [f"failed: {str(error).strip().splitlines()[-1]}"]
        return [answer for cell in cells for answer in _ran(size, work, [cell])]
    of_cells = [[*made] for made in zip(*ranks, strict=True)]
    return [next((one for one in made if isinstance(one, UnsupportedError)), made) for made in of_cells]


def _each(work: Callable[..., Any], cells: list[tuple[RunDirectory, Execution]]) -> list[Any]:
    answers: list[Any] = []
    for run, chosen in cells:
        try:
            answers.append(work(run, chosen))
        except UnsupportedError as error:
            answers.append(UnsupportedError(said(error)))
    return answers


def _one(run: RunDirectory, chosen: Execution) -> tuple[str, Any]:
    """How a step differs from plain transformers' (empty: it does not); what training made."""
    return _unlike_transformers(composed(run, chosen)), _trained(run, chosen)


def _trained(run: RunDirectory, chosen: Execution) -> dict[str, Any]:
    built = composed(run, chosen)
    start = outcome(built).weights
    planned = take_inventory(built.job, built.model.shape).trained_elements
    assert chosen.layout.pp > 1 or planned == sum(
        built.model.elements[name] for name, parameter in built.model.trained if name in built.model.elements
    ), "other elements are trained than planned"
    train_on(built)
    end = outcome(built)
    return {"metrics": end.metrics, "start": start, "end": end.weights, "frozen": end.frozen}


def _unlike_transformers(built: Any) -> str:
    """One global batch, each of its documents alone through `from_pretrained`'s model."""
    batch = next(iter(built.batches.from_(0)))
    ours = float(built.step(batch))
    gradients = {name: parameter.grad for name, parameter in built.model.trained}
    model = _plain(built)
    documents = [one for sample in batch.sample_ids for one in _documents(*built.data.sample(sample))]
    trained = sum(int((labels != -100).sum()) for _, labels in documents)
    theirs = 0.0
    for ids, labels in documents:
        logits = model(input_ids=ids.unsqueeze(0), use_cache=False).logits[0]
        loss = F.cross_entropy(logits, labels, reduction="sum", ignore_index=-100) / trained
        loss.backward()
        theirs += loss.item()
    if not math.isclose(ours, theirs, rel_tol=SAME_FIGURE):
        return f"loss {ours:.7g}, and there {theirs:.7g}"
    for name, parameter in model.named_parameters():
        mine, other = gradients.get(name.removeprefix("base_model.model.")), parameter.grad
        if mine is None or other is None:
            alone = next((one for one in (mine, other) if one is not None), None)
            if alone is not None and float(alone.abs().max()) > 0:
                return f"the gradient of {name} is one's alone"
        elif _far(other, mine, floor=1e-6 * max(1.0, float(parameter.detach().norm()))):
            return f"the gradient of {name}"
    return ""


def _plain(built: Any) -> Any:
    """The model that `from_pretrained` gives, no dropout; PEFT's adapters start as ours do."""
    model: Any = AutoModelForCausalLM.from_pretrained(built.job.model, dtype=torch.float32)
    if built.job.adapters is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the name of the model
            model = peft.get_peft_model(model, built.model.result.adapters.peft_config["default"])
        ours = dict(built.model.parameters)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.data.copy_(ours[name.removeprefix("base_model.model.")].detach())
    return model.eval()


def _documents(ids: Any, positions: Any, labels: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    starts = [index for index, position in enumerate(positions.tolist()) if position == 0]
    for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
        yield torch.tensor(ids[start:end].tolist()), torch.tensor(labels[start:end].tolist())


def unlike(expected: dict[str, Any], ranks: list[dict[str, Any]]) -> str:
    """How ranks differ from one process; empty where they do not."""
    for figure in ("loss", "grad_norm"):
        one, other = ([record[figure] for record in made["metrics"]] for made in (expected, ranks[0]))
        if relative(one, other) > SAME_FIGURE:
            return f"{figure} {other}, and there {one}"
    held = {name: weight for rank in ranks for name, weight in rank["end"].items()}
    if held.keys() != expected["end"].keys():
        return f"other weights are trained: {sorted(held.keys() ^ expected['end'].keys())[:3]}"
    if {*expected["frozen"].items()} - {pair for rank in ranks for pair in rank["frozen"].items()}:
        return "a frozen weight"
    for rank in ranks:
        for name, weight in rank["end"].items():
            start, end = expected["start"][name], expected["end"][name]
            if _far(end - start, weight - start, floor=ROUNDED * float(start.norm()) + 1e-9):
                return name
            if not torch.equal(weight, held[name]):
                return f"ranks hold different {name}"
    return ""


def _far(expected: torch.Tensor, found: torch.Tensor, *, floor: float) -> bool:
    whole = float((expected.double() - found.double()).norm())
    return not whole <= SAME_WEIGHT * float(expected.double().norm()) + floor


def _sentence(error: BaseException, folder: Path) -> str:
    problems = getattr(error, "problems", None)
    text = "; ".join(problem.message for problem in problems) if problems else said(error)
    return " ".join(text.replace(str(folder), "the model").split())


def make_rows(path: Path) -> Path:
    """Rows of very different lengths, written to a file."""
    draw, words = random.Random(0), ["red", "blue", "one", "two", "north", "south"]
    lines = [{"text": " ".join(draw.choices(words, k=draw.randint(2, 14)))} for _ in range(8 * STEPS + 5)]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path
