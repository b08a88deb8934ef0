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
from shardwise.train.rehearsing.profile import profile_blocks, ways_to_run, whole_shares
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
    return at_once(ranks, partial(_rehearse, job, execution, cuda, copies and not cuda, prepared), begins=begins)


def at_once(
    ranks: Sequence[int],
    rehearse: Callable[[int], dict[str, Any]],
    *,
    what: str = "the rehearsal of rank",
    begins: Callable[[int], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Each rank in a process of its own: torch remembers groups of an earlier world."""
    context, cores = multiprocessing.get_context("fork"), len(os.sched_getaffinity(0))
    answers: list[dict[str, Any]] = []
    for batch in (ranks[start : start + cores] for start in range(0, len(ranks), cores)):
        started: list[tuple[int, BaseProcess, Connection]] = []
        for rank in batch:
            begins(rank)
            receiving, sending = context.Pipe(duplex=False)
            process = context.Process(target=lambda pipe, rank: pipe.send(rehearse(rank)), args=(sending, rank))
            process.start()
            sending.close()
            started.append((rank, process, receiving))
        for rank, process, receiving in started:
            try:
                answers.append(receiving.recv())
            except EOFError:
                answers.append({"refused": [f"{what} {rank} ended without an answer"]})
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = _tried(partial(_measures, asked))
        of_blocks, of_shares = found.get("made", ((), ()))
        every = (*of_blocks, *of_shares)
        # The others know the way by the first.
        answers = [_tried(one) for one in every[:1]]
        answers += at_once(range(1, len(every)), lambda at: _tried(every[at]), what="the measuring of profile")
    made, shares = answers[: len(of_blocks)], [one["made"] for one in answers[len(of_blocks) :] if "made" in one]
    refused = [why for one in (found, *made) for why in one.get("refused", ())]
    if refused:
        return {"refused": refused[0]}
    return {"profiles": [asdict(_with_shares(one["made"], *shares)) for one in made]}


def _tried(measure: Callable[[], Any]) -> dict[str, Any]:
    """What is made, or why not, as `at_once` takes it."""
    try:
        return {"made": measure()}
    except (ShardwiseError, RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError) as error:
        return {"refused": [f"{type(error).__name__}: {said(error)}"]}


def _measures(asked: dict[str, Any]) -> tuple[list[Callable[[], ModelProfile]], list[Callable[[], Any]]]:
    """What measures each profile; and what tensor parallelism leaves whole, where it slices."""
    job, shape = job_from_data(asked["job"]), ModelShape.from_json(asked["shape"])
    longest = min(job.data.max_length, shape.max_position_embeddings)
    lengths = lengths_for(longest)
    config = narrowed(config_from(asked["config"]), length=longest, lengths=lengths)
    of: dict[str, Any] = {"config": config, "shape": shape, "casts": not asked["cuda"], "ways": ways_to_run()}
    executions = [from_plain(Execution, one) for one in asked["executions"]]
    of_blocks = [
        partial(profile_blocks, job, one, lengths=lengths, sharded=kind, packages=asked.get("kernels", ()), **of)
        for one in executions
        for kind in ((False, True) if TYPES[one.precision].autocasts else (False,))
    ]
    slices = splits(shape, "slices") and most_slices(shape) % 2 == 0
    return of_blocks, [partial(whole_shares, job, executions[0], length=lengths[-1], **of)] if slices else []


def _with_shares(profile: ModelProfile, shares: Sequence[dict[str, float]] = ()) -> ModelProfile:
    """With what tensor parallelism leaves whole; all of it, where a slice could not be measured."""
    if len(shares) != len(profile.blocks):
        return profile
    blocks = tuple(replace(block, **share) for block, share in zip(profile.blocks, shares, strict=True))
    return replace(profile, blocks=blocks)


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
