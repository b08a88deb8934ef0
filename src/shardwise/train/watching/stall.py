"""Finds the rank that a stuck run waits for: it began fewer collectives, and waits for nobody."""

import json
import linecache
import sys
import threading
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

import shardwise
from shardwise.errors import ShardwiseError
from shardwise.parallel.mesh import World
from shardwise.units import format_ranks, format_seconds

_PACKAGE = Path(shardwise.__file__).parent
_COLLECTIVES = str(Path(dist.__file__).parent)

#: A rank whose innermost line calls one of these waits for a message or a device.
_WAITING = ("wait(", ".item()", ".tolist()", ".cpu()", "synchronize(", "barrier(")

_PLACES_NAMED = 4

Counted = tuple[tuple[int, ...], int]
"""The ranks of a group, and how many collectives of it a rank has begun."""


class StallError(ShardwiseError):
    """The run made no progress; the process was ended by its watchdog thread."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where one rank is. `place`: function, file and line in this package; `waits`: whether its
    stack shows that it waits for others; `unfinished`: its oldest collective or message under way,
    or nothing; `groups`: of this rank, which every rank lists in the same order."""

    rank: int
    phase: str
    place: str
    waits: bool
    unfinished: str = ""
    groups: tuple[Counted, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The rank that is named as the cause, what it was doing, and the sentence for the user."""

    culprit: int
    phase: str
    sentence: str


def standing(world: World | None, *, rank: int, phase: str) -> Standing:
    """Where the main thread of this process is; called from another thread."""
    place, waits = _main_thread()
    return Standing(rank=rank, phase=phase, place=place, waits=waits, unfinished=unfinished(), groups=begun(world))


def is_waiting() -> bool:
    """Whether the main thread's stack shows that it waits for others. So does a device that has not
    ended what this rank began: a host whose queue is full may stand in any line."""
    return _main_thread()[1] or bool(torch.cuda.is_available() and unfinished())


def unfinished() -> str:
    """The oldest collective or message begun and not ended on this rank, by torch's flight
    recorder: `all_reduce 41 of ranks 0-3`. On CUDA by what the device has ended."""
    try:
        record: Any = _distributed_c10d
        active = json.loads(record._dump_fr_trace_json(includeCollectives=True, onlyActive=True))["entries"]
        first = min((one for one in active if not one["retired"]), key=lambda one: one["record_id"])
        ranks = dist.get_process_group_ranks(_distributed_c10d._resolve_process_group(first["process_group"][0]))
    except (AttributeError, KeyError, RuntimeError, ValueError):  # nothing is active, or torch has no record
        return ""
    number = first["p2p_seq_id" if first["is_p2p"] else "collective_seq_id"]
    return f"{first['profiling_name'].partition(':')[2]} {number} of {format_ranks(ranks)}"


def _main_thread() -> tuple[str, bool]:
    frames = traceback.extract_stack(sys._current_frames()[threading.main_thread().ident or 0])
    ours = [index for index, frame in enumerate(frames) if Path(frame.filename).is_relative_to(_PACKAGE)]
    frame, *_ = inside = frames[ours[-1] if ours else -1 :]
    line = linecache.getline(inside[-1].filename, inside[-1].lineno or 0)
    waits = any(f.filename.startswith(_COLLECTIVES) for f in inside) or any(call in line for call in _WAITING)
    return f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})", waits


def begun(world: World | None) -> tuple[Counted, ...]:
    """Collectives begun in each of this rank's groups, as torch counts them."""
    if world is None:
        return ()
    found: list[Counted] = []
    for group in (dist.group.WORLD, world.control, world.data_group, *world.mesh.get_all_groups()):
        if group is not None and group.size() > 1:
            with suppress(RuntimeError):  # a backend that does not count
                count: Any = group._get_sequence_number_for_group()  # pyright: ignore[reportAttributeAccessIssue]  # not in stubs
                found.append((tuple(dist.get_process_group_ranks(group)), int(count)))
    return tuple(found)


def judge(standings: Sequence[Standing], *, ranks: Iterable[int], seconds: float, at: str = "") -> Verdict:
    """Finds the rank that the others wait for. `ranks`: of which some answered; `seconds`: without
    progress; `at`: the phase, where a stop was asked for before the first step ended."""
    phases = {one.rank: one.phase for one in standings}
    silent = sorted(set(ranks) - set(phases))
    last, working = _last(standings), {one.rank for one in standings if not one.waits}
    # Point-to-point messages are not counted: with equal counts it is the ranks that do not wait.
    mixed = working if len(working) < len(standings) else set[int]()
    # The surest sign first: behind and not waiting; no answer; behind, or alone at work.
    awaited = sorted(last & working) or silent or sorted(last or mixed)
    one = "does not answer, its process is stopped or hangs outside Python"
    more = "do not answer, their processes are stopped or hang outside Python"
    parts = [f"{format_ranks(silent)} {more if len(silent) > 1 else one}"] if silent else []
    parts += _places(one for one in standings if one.rank in awaited)
    parts += _places(one for one in standings if one.rank not in awaited)
    if len(parts) > _PLACES_NAMED:
        parts[_PLACES_NAMED:] = [f"{len(parts) - _PLACES_NAMED} other places are in the logs"]
    mutual = not awaited and len(standings) > 1 and not working
    stuck = f"nothing has moved for {format_seconds(seconds)}: {'ranks wait for each other: ' if mutual else ''}"
    culprit = min(awaited or phases)
    phase = phases.get(culprit, standings[0].phase)
    sentence = f"{f'it was still {at}: ' if at else stuck}{'; '.join(parts)}. The stack of each rank is in its log"
    return Verdict(culprit=culprit, phase=phase, sentence=sentence)


def _last(standings: Sequence[Standing]) -> set[int]:
    """Ranks that have begun fewer collectives of some group than a peer, and of none more."""
    counts: dict[tuple[int, tuple[int, ...]], dict[int, int]] = {}
    for one in standings:
        for index, (ranks, count) in enumerate(one.groups):
            counts.setdefault((index, ranks), {})[one.rank] = count
    ahead = {rank for by in counts.values() for rank, count in by.items() if count > min(by.values())}
    behind = {rank for by in counts.values() for rank, count in by.items() if count < max(by.values())}
    # Who is behind in one group and ahead in another waits itself.
    return behind - ahead


def _places(standings: Iterable[Standing]) -> list[str]:
    where: dict[tuple[str, bool, str], list[int]] = {}
    for one in standings:
        where.setdefault((one.place, one.waits, one.unfinished), []).append(one.rank)
    return [
        f"{format_ranks(ranks)} {(('waits', 'wait') if waits else ('is', 'are'))[len(ranks) > 1]} in {place}"
        + (f", where {unfinished} has not ended" if unfinished else "")
        for (place, waits, unfinished), ranks in where.items()
    ]
