"""The profiles that a job's executions need of a model (`programs/block_profiles.py`)."""

import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from shardwise.errors import ShardwiseError, said
from shardwise.models.built.shape import config_from
from shardwise.models.wrapper import text_config
from shardwise.spec.job.file import job_from_data
from shardwise.spec.job.strict import from_plain
from shardwise.spec.layout.execution import Execution
from shardwise.spec.model.profile import LONGEST_MEASURED, WINDOWS
from shardwise.spec.model.shape import ModelShape
from shardwise.train.precision import TYPES
from shardwise.train.rehearsing.profile import profile_blocks

#: Lengths are multiples of a chunk of linear attention, where they are four of them or more.
_CHUNK = 64


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Of `config`, a config.json's keys, for the `executions` of `job`; `cuda`: as on a GPU;
    `kernels`: packages whose kernels run there. Returns `profiles`, or `refused`, a sentence."""
    torch.set_num_threads(1)
    job, shape = job_from_data(asked["job"]), ModelShape.from_json(asked["shape"])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lengths = lengths_for(job.data.max_length)
            profiles = [
                profile_blocks(
                    job,
                    execution,
                    config=narrowed(config_from(asked["config"]), length=job.data.max_length, lengths=lengths),
                    shape=shape,
                    lengths=lengths,
                    sharded=sharded,
                    casts=not asked["cuda"],
                    packages=asked.get("kernels", ()),
                )
                for execution in (from_plain(Execution, one) for one in asked["executions"])
                for sharded in ((False, True) if TYPES[execution.precision].autocasts else (False,))
            ]
    except (ShardwiseError, RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        return {"refused": f"{type(error).__name__}: {said(error)}"}
    return {"profiles": [asdict(profile) for profile in profiles]}


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
