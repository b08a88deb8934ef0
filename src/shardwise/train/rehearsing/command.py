"""Rehearses ranks of an execution (`programs/rehearse.py`), and makes the profiles that a job's
executions need of a model (`programs/block_profiles.py`).

Each rank is a fork of this process, as many at once as there are cores: a process can be in one
world only.
"""

import multiprocessing
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from shardwise.errors import InputError, ShardwiseError, said
from shardwise.models.built.shape import config_from
from shardwise.models.wrapper import text_config
from shardwise.spec.job.file import job_from_data
from shardwise.spec.job.keys import Job
from shardwise.spec.job.strict import from_plain
from shardwise.spec.layout.execution import Execution
from shardwise.spec.model.profile import LONGEST_MEASURED, WINDOWS, ModelProfile
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.run import RunDirectory
from shardwise.spec.support.splits import most_slices, splits
from shardwise.train.precision import TYPES
from shardwise.train.rehearsing.profile import profile_blocks, whole_shares
from shardwise.train.rehearsing.rank import rehearse_rank, write_model


def rehearse_ranks(
    job: Job,
    execution: Execution,
    ranks: Sequence[int],
    *,
    cuda: bool,
    copies: bool = True,
    prepared: RunDirectory | None = None,
    begins: Callable[[int], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """What `rehearse_rank` found of each of some ranks, or {"refused": sentences}. `copies`: with
    those gloo makes, where processors are rehearsed; `prepared`: as `rehearse_rank` takes it;
    `begins`: called with each rank before."""
    cores = len(os.sched_getaffinity(0))
    answers: list[dict[str, Any]] = []
    for start in range(0, len(ranks), cores):
        batch = ranks[start : start + cores]
        for rank in batch:
            begins(rank)
        answers += at_once(batch, partial(_rehearse, job, execution, cuda, copies and not cuda, prepared))
    return answers


def at_once(ranks: Sequence[int], rehearse: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """Each rank in a process of its own: torch remembers groups of an earlier world."""
    context = multiprocessing.get_context("fork")
    started: list[tuple[int, BaseProcess, Connection]] = []
    for rank in ranks:
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=lambda pipe, rank: pipe.send(rehearse(rank)), args=(sending, rank))
        process.start()
        sending.close()
        started.append((rank, process, receiving))
    answers: list[dict[str, Any]] = []
    for rank, process, receiving in started:
        try:
            answers.append(receiving.recv())
        except EOFError:
            answers.append({"refused": [f"the rehearsal of rank {rank} ended without an answer"]})
        process.join()
    return answers


def _rehearse(
    job: Job, execution: Execution, cuda: bool, copies: bool, prepared: RunDirectory | None, rank: int
) -> dict[str, Any]:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fakes whose memory is asked for its address
        try:
            return rehearse_rank(job, execution, rank=rank, casts=not cuda, copies=copies, prepared=prepared)
        except InputError as error:
            return {"refused": [problem.message for problem in error.problems]}
        except ShardwiseError as error:
            return {"refused": [str(error)]}
        except (RuntimeError, ValueError, TypeError, NotImplementedError, AssertionError, AttributeError) as error:
            return {"refused": [f"rank {rank} would fail: {type(error).__name__}: {said(error)}"]}


def answer(asked: dict[str, Any], *, write: Callable[[dict[str, Any]], None]) -> None:
    """Answers a question (`job`, `execution`, `ranks`, `cuda`, `config`, `dtype`) by its output."""
    job, execution = job_from_data(asked["job"]), from_plain(Execution, asked["execution"])
    with tempfile.TemporaryDirectory() as folder:
        if asked["config"] is not None:
            model = write_model(Path(folder) / "model", asked["config"], dtype=getattr(torch, asked["dtype"]))
            job = job.model_copy(update={"model": str(model)})
        ranks, cuda = asked["ranks"], asked["cuda"]
        found = rehearse_ranks(job, execution, ranks, cuda=cuda, begins=lambda rank: write({"begins": rank}))
        write({"ranks": found})


#: Lengths are multiples of a chunk of linear attention, where they are four of them or more.
_CHUNK = 64


def answer_profiles(asked: dict[str, Any]) -> dict[str, Any]:
    """Of `config`, a config.json's keys, for the `executions` of `job`; `cuda`: as on a GPU;
    `kernels`: packages whose kernels run there. Returns `profiles`, or `refused`, a sentence."""
    torch.set_num_threads(1)
    job, shape = job_from_data(asked["job"]), ModelShape.from_json(asked["shape"])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lengths = lengths_for(job.data.max_length)
            config = narrowed(config_from(asked["config"]), length=job.data.max_length, lengths=lengths)
            of: dict[str, Any] = {"config": config, "shape": shape, "casts": not asked["cuda"]}
            executions = [from_plain(Execution, one) for one in asked["executions"]]
            profiles = [
                profile_blocks(job, one, lengths=lengths, sharded=sharded, packages=asked.get("kernels", ()), **of)
                for one in executions
                for sharded in ((False, True) if TYPES[one.precision].autocasts else (False,))
            ]
            if splits(shape, "slices") and most_slices(shape) % 2 == 0:
                profiles = _with_shares(profiles, partial(whole_shares, job, executions[0], length=lengths[-1], **of))
    except (ShardwiseError, RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        return {"refused": f"{type(error).__name__}: {said(error)}"}
    return {"profiles": [asdict(profile) for profile in profiles]}


def _with_shares(profiles: list[ModelProfile], measure: Callable[[], list[dict[str, float]]]) -> list[ModelProfile]:
    """With what tensor parallelism leaves whole; all of it, where a slice cannot be measured."""
    with suppress(ShardwiseError, RuntimeError, ValueError, TypeError, LookupError, AttributeError):
        shares = measure()
        pairs = [zip(one.blocks, shares, strict=True) for one in profiles]
        blocks = [tuple(replace(block, **share) for block, share in each) for each in pairs]
        return [replace(one, blocks=made) for one, made in zip(profiles, blocks, strict=True)]
    return profiles


def lengths_for(longest: int) -> tuple[int, int, int]:
    """Three lengths of rows, the last of which is that of a job, if it is not too long."""
    last = min(longest, LONGEST_MEASURED)
    step = _CHUNK if last >= 4 * _CHUNK else 1
    first, second = (max(step, last // share // step * step) for share in (4, 2))
    return (first, second, last) if first < second < last else (last, last + 1, last + 2)


def narrowed(config: Any, *, length: int, lengths: Sequence[int]) -> Any:
    """A configuration with windows shorter than all measured rows, where a job's are longer."""
    text = text_config(config)
    for key in WINDOWS:
        width = text.to_dict().get(key)
        if type(width) is int and lengths[0] <= width < length:
            setattr(text, key, max(1, lengths[0] // 2))
    return config
