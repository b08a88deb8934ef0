"""A tiny model of a family put to the product: its count, and what each way of training makes of a
few steps."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

import peft
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import shardwise.train.model
from shardwise.data.store import PreparedData
from shardwise.errors import InputError, UnsupportedError, said
from shardwise.models.built.shape import built_shape, shape_of
from shardwise.models.wrapper import find_inside
from shardwise.plan.work.inventory import take_inventory
from shardwise.spec.job.file import job_from_data
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import RunDirectory
from shardwise.spec.support.trained import execution_refusals
from tests.dist.cells import composed, outcome, prepare_cell, relative, spread, train_on
from tests.dist.tiny import tiny_config
from tests.dist.worlds import correct_routers, free_port, join_ranks

#: Ways of training by name: the layout, and whether rows are packed.
WAYS: dict[str, tuple[Layout, bool]] = {
    "single": (Layout(), False),
    "packed": (Layout(), True),
    "ddp": (Layout(dp_replicate=2), False),
    "zero1": (Layout(dp_shard=2, zero_stage=1, reshard_after_forward=False), False),
    "zero2": (Layout(dp_shard=2, zero_stage=2, reshard_after_forward=False), False),
    "fsdp": (Layout(dp_shard=2), False),
    "mp": (Layout(pp=2, schedule="sequential"), False),
    "pp": (Layout(pp=2), False),
    "tp": (Layout(tp=2), False),
    "cp": (Layout(cp=2), False),
    "ep": (Layout(dp_shard=2, ep=2), False),
}
METHODS = ("full", "lora")

STEPS = 2
TIMEOUT_SECONDS = 120

#: Of a loss, and of a gradient norm, over a step's.
SAME_FIGURE = 1e-5
#: Of what steps did to a weight, or of a gradient, relative to it. Beside it what float32 rounds of the weight.
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
        model.save_pretrained(folder)
    except Exception as error:  # noqa: BLE001 - whatever a family raises, it has no tiny model
        try:
            built_shape({"model_type": family}, file="config.json")
        except (InputError, UnsupportedError) as refused:
            return {**found, "refused": _sentence(refused, folder)}
        return {**found, "unbuilt": f"{type(error).__name__}: {said(error)}"}
    _tokenizer().save_pretrained(folder)
    try:
        shape = _shape(str(folder))
    except (InputError, UnsupportedError) as error:
        return {**found, "refused": _sentence(error, folder)}
    except Exception as error:  # noqa: BLE001 - a fault of ours is a line of the table too
        return {**found, "refused": "failed: " + _last(error)}
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
    """The cells of one model, in worlds of ranks that live on from one to the next."""

    def __init__(self, *, root: Path, folder: Path, rows: Path) -> None:
        self._root, self._folder, self._rows = root, folder, rows
        self._worlds: dict[int, Ranks] = {}
        self._alone = ""

    def all(self, ways: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
        """(method, way, what became of it)."""
        try:
            for method in METHODS:
                expected: Any = None
                self._alone = "not run: one process was not right"
                for way in ways:
                    try:
                        made = self._cell(method, way, expected)
                    except UnsupportedError as error:
                        refused = f"refused: {_sentence(error, self._folder)}"
                        self._alone = refused if way == "single" else self._alone
                        yield method, way, refused
                        continue
                    except AssertionError as error:
                        yield method, way, str(error)
                        continue
                    expected = made if way == "single" else expected
                    yield method, way, "equal"
        finally:
            for world in self._worlds.values():
                world.end()

    def _cell(self, method: str, way: str, expected: Any) -> Any:
        layout, packed = WAYS[way]
        job = _job(self._folder, self._rows, method=method, packed=packed)
        shape = _shape(str(self._folder))
        kernel = "eager" if shape.eager_attention else "sdpa"
        chosen = spread(layout, micros=2 if layout.pp > 1 else 1, optimizer="sgd", attn_implementation=kernel)
        reasons = execution_refusals(job, chosen, model=shape)
        if reasons:
            raise UnsupportedError("; ".join(reasons))
        run = prepare_cell(job, self._root / f"{method}-{way}")
        if layout.world_size == 1:
            plain, made = self._ranks(1).run(_one, run, chosen)[0]
            assert not plain, f"differs from transformers: {plain}"
            return made
        assert expected is not None, self._alone
        ranks = self._ranks(layout.world_size).run(_trained, run, chosen)
        differs = unlike(expected, ranks)
        assert not differs, f"differs from one process: {differs}"
        return None

    def _ranks(self, size: int) -> Ranks:
        world = self._worlds.get(size)
        if world is None or not world.alive:
            world = self._worlds[size] = Ranks(size)
        return world


def _job(folder: Path, rows: Path, *, method: str, packed: bool) -> Job:
    return job_from_data(
        {
            "model": str(folder),
            "method": method,
            "data": {"path": str(rows), "max_length": 64, "over_long": "truncate", "packing": packed},
            "train": {
                "global_batch_size": 8,
                "max_steps": STEPS,
                "learning_rate": 0.1,
                "lr_scheduler_type": "constant",
                "precision": "fp32",
                "optimizer": "sgd",
                "disable_dropout": True,
            },
            **({"lora": {"r": 4, "lora_alpha": 8}} if method == "lora" else {}),
        }
    )


def _one(run: RunDirectory, chosen: Execution) -> tuple[str, Any]:
    """How a step differs from one of plain transformers (empty: it does not), and what training
    made of the weights."""
    built = composed(run, chosen)
    return _unlike_transformers(run, built), _trained(run, chosen)


def _trained(run: RunDirectory, chosen: Execution) -> dict[str, Any]:
    built = composed(run, chosen)
    start = outcome(run, built).weights
    planned = take_inventory(built.job, built.model.shape).trained_elements
    assert chosen.layout.pp > 1 or planned == sum(
        built.model.elements[name] for name, parameter in built.model.trained if name in built.model.elements
    ), "failed: other elements are trained than planned"
    train_on(run, built)
    end = outcome(run, built)
    return {"metrics": end.metrics, "start": start, "end": end.weights, "frozen": end.frozen}


def _unlike_transformers(run: RunDirectory, built: Any) -> str:
    """One global batch, each of its documents alone through `from_pretrained`'s model."""
    batch = next(iter(built.batches.from_(0)))
    ours = float(built.step(batch))
    gradients = {name: parameter.grad for name, parameter in built.model.trained}
    data = PreparedData.open(Path(json.loads(run.data.read_text())["train"]["folder"]))
    model = _plain(built)
    documents = [one for sample in batch.sample_ids for one in _documents(*data.sample(sample))]
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


class Ranks:
    """Processes of one group that run one piece of work after another, until one of them fails."""

    def __init__(self, size: int) -> None:
        context, port = get_context("fork"), free_port()
        self._pipes = [context.Pipe() for _ in range(size)]
        self._ranks = [
            context.Process(target=_serve, args=(rank, size, port, self._pipes[rank][1]), daemon=True)
            for rank in range(size)
        ]
        self.alive = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # as in worlds.py
            for process in self._ranks:
                process.start()

    def run(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What each rank returned. Raises UnsupportedError: all of them refused it; AssertionError:
        one failed."""
        for near, _ in self._pipes:
            near.send_bytes(pickle.dumps((work, arguments)))
        answers: dict[Any, tuple[str, Any]] = {}
        end = time.monotonic() + TIMEOUT_SECONDS
        while len(answers) < len(self._pipes):
            left = [near for near, _ in self._pipes if near not in answers]
            ready = wait(left, timeout=max(0, end - time.monotonic()))
            for pipe in cast(list[Connection], ready):
                try:
                    answers[pipe] = pickle.loads(pipe.recv_bytes())
                except EOFError:
                    answers[pipe] = "failed", "failed: the process died"
            failed = [what for kind, what in answers.values() if kind == "failed"]
            if failed or not ready:
                self.end()
                raise AssertionError(failed[0] if failed else f"failed: no answer in {TIMEOUT_SECONDS} s")
        refused = [what for kind, what in answers.values() if kind == "refused"]
        if refused:
            raise UnsupportedError(refused[0])
        return [answers[near][1] for near, _ in self._pipes]

    def end(self) -> None:
        """Ends the processes."""
        self.alive = False
        for process in self._ranks:
            process.kill()
        for process in self._ranks:
            process.join()


def _serve(rank: int, size: int, port: int, pipe: Any) -> None:
    join_ranks(rank, size, port)
    while True:
        try:
            work, arguments = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        try:
            answer = "made", work(*arguments)
        except UnsupportedError as error:
            answer = "refused", said(error)
        except BaseException as error:  # noqa: BLE001 - whatever happens in a rank must reach the table
            if os.environ.get("SHOW"):
                traceback.print_exc()
            answer = "failed", str(error) if isinstance(error, AssertionError) else "failed: " + _last(error)
        pipe.send_bytes(pickle.dumps(answer))


def _last(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {said(error)} ({Path(frame.filename).name}:{frame.lineno})"


def _sentence(error: BaseException, folder: Path) -> str:
    problems = getattr(error, "problems", None)
    text = "; ".join(problem.message for problem in problems) if problems else said(error)
    return " ".join(text.replace(str(folder), "the model").split())


@cache
def _tokenizer() -> PreTrainedTokenizerFast:
    """Of single bytes, which takes any text."""
    specials = ["<pad>", "<bos>", "<eos>"]
    words = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(tokenizer_models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")


def make_rows(path: Path) -> Path:
    """Rows of very different lengths, written to a file."""
    draw, words = random.Random(0), ["red", "blue", "one", "two", "north", "south"]
    lines = [{"text": " ".join(draw.choices(words, k=draw.randint(2, 14)))} for _ in range(8 * STEPS + 5)]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path
