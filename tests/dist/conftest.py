"""Toys that all worlds share: random Llamas with a tokenizer, and ragged rows."""

import json
import os
import random
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shardwise.launch.processes import command
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import RunDirectory
from tests.dist.cells import OPTIMIZERS, Trained, execution, job_on, save_cell, spread, train_cell
from tests.dist.compare import must_equal
from tests.dist.worlds import add_tokenizer, toy_model
from tests.pairwise import processes
from tests.warm.shim import KIND


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All start processes; of a table `make test` runs one cell and the `core` ones."""
    tables: dict[str, list[pytest.Item]] = {}
    for item in items:
        if "tests/dist" in str(item.path):
            item.add_marker(pytest.mark.dist)
            if item.get_closest_marker("core") is None:
                # Two cores take turns for more than two processes.
                if processes(item) > 2 or item.get_closest_marker("rare") is not None:
                    item.add_marker(pytest.mark.slow)
                if item.get_closest_marker("slow") is None:
                    tables.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cells in tables.values():
        plain = max(cells, key=processes)  # of several the first, which is the simplest
        for item in cells:
            if item is not plain:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Rows of very different lengths, an odd number of them."""
    folder = tmp_path_factory.mktemp("rows")
    draw = random.Random(0)
    words = ["red", "green", "blue", "one", "two", "three", "four", "north", "south", "east", "west"]
    files: dict[str, Path] = {}
    for name, count in (("train", 53), ("eval", 11)):
        files[name] = folder / f"{name}.jsonl"
        with files[name].open("w") as file:
            for _ in range(count):
                question = " ".join(draw.choices(words, k=draw.randint(1, 14)))
                answer = " ".join(draw.choices(words, k=draw.randint(1, 9)))
                file.write(json.dumps({"question": question, "answer": answer}) + "\n")
    return files


def _stated(name: str, table: dict[str, Any]) -> dict[str, Any]:
    """The keys of a toy, behind those of the entries that it is `like`."""
    own = dict(table[name])
    return {key: value for other in own.pop("like", ()) for key, value in _stated(other, table).items()} | own


def _toys() -> dict[str, dict[str, Any]]:
    read = tomllib.loads(Path(__file__).with_name("toys.toml").read_text(encoding="utf-8"))
    found = {name: _stated(name, read["like"] | read["toys"]) for name in read["toys"]}
    found["bfloat16"]["dtype"] = torch.bfloat16
    return found


#: name -> what a toy is beside a Llama of 3 blocks with untied weights.
TOYS = _toys()


class Toys(dict[str, Path]):
    """Folders of random models by the names of `TOYS`, each made when it is first asked for."""

    def __init__(self, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
        super().__init__()
        self._texts, self._folders = texts, tmp_path_factory

    def __missing__(self, name: str) -> Path:
        folder = self._folders.mktemp(name.replace(" ", "-"))
        self[name] = toy_model(folder, vocab_size=add_tokenizer(folder, self._texts) + 7, **TOYS[name])
        return self[name]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, rows: dict[str, Path]) -> Toys:
    return Toys(rows["train"].read_text().splitlines(), tmp_path_factory)


@pytest.fixture(scope="session")
def make_job(models: Toys, rows: dict[str, Path]) -> Callable[..., Job]:
    """Makes jobs on the toys, or on a folder; keyword arguments go to the section of their name."""

    def make(model: str | Path = "untied", *, method="full", data: Any = None, train: Any = None, **other: Any) -> Job:
        folder = models[model] if isinstance(model, str) else model
        steps = {"max_steps": 20, "learning_rate": 5e-4, "lr_scheduler_type": "cosine", "warmup_steps": 3}
        asked = {"path": str(rows["train"]), "max_length": 96, **(data or {})}
        return job_on(folder, data=asked, train={**steps, **(train or {})}, method=method, **other)

    return make


@pytest.fixture
def project(make_job: Callable[..., Job], models: Toys, tmp_path: Path, monkeypatch) -> Callable[..., Job]:
    """Makes a job that names its model as people do, from the folder `project`."""

    def make(model: str, **job: Any) -> Job:
        shutil.copytree(models[model], tmp_path / "project/models/base")
        monkeypatch.chdir(tmp_path / "project")
        train = {"max_steps": 3, "learning_rate": 2e-2, "warmup_steps": 0}
        return make_job(model, **{"train": train, **job}).model_copy(update={"model": "models/base"})

    return make


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Job], Trained]:
    """Trains a job on one process, the whole global batch in one forward; each job once."""
    known: dict[str, Trained] = {}

    def run(job: Job) -> Trained:
        key = json.dumps(job.to_json())
        if key not in known:
            optimizer = "adamw" if job.train.optimizer == "auto" else job.train.optimizer
            known[key] = train_cell(job, tmp_path_factory.mktemp("single"), spread(optimizer=optimizer))[0]
        return known[key]

    return run


@pytest.fixture
def must_train_alike(make_job, single, tmp_path) -> Callable[..., Any]:
    """Trains a job (ten steps by SGD) on one process and under an execution; what they came to."""

    def train(chosen: Execution, model="untied", *, train: Any = None, without_gradient=None, **job: Any) -> Any:
        asked = make_job(model, train={**OPTIMIZERS["sgd"], "max_steps": 10, **(train or {})}, **job)
        expected = single(asked)
        ranks = train_cell(asked, tmp_path / "cell", replace(chosen, optimizer=asked.train.optimizer))
        must_equal(expected, ranks, without_gradient=without_gradient)
        return expected, ranks

    return train


#: The end of a program that is started in place of the worker.
THEN_WORKS = """
from shardwise.programs import worker as program

program.end_process(program.main())
"""


@pytest.fixture
def trained(make_job: Callable[..., Job], tmp_path: Path) -> Callable[..., RunDirectory]:
    """Trains a job, by default an adapter, and saves its result."""

    def make(model: str | Path, *, precision="fp32", attn_implementation: Any = "sdpa", **job: Any) -> RunDirectory:
        train = {"max_steps": 3, "learning_rate": 2e-2, "warmup_steps": 0, "precision": precision}
        asked = make_job(model, **{"method": "lora", "train": train, **job})
        chosen = execution(precision=precision, attn_implementation=attn_implementation)
        return save_cell(asked, tmp_path / "run", chosen)

    return make


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets workers begin with a text; `warm`: off a warm process."""

    def made(text: str, *, warm: bool = True) -> None:
        (tmp_path / "made_worker.py").write_text(text + THEN_WORKS)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
        monkeypatch.setenv(KIND, "torch" if warm else "")
        monkeypatch.setattr(command, "WORKER", "made_worker")

    return made
