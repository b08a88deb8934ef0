"""Runs the ranks of one machine: passes signals on, ends everything, says how it went.

The promises: a request to stop reaches each rank once and is waited for; a second one, or a failing
rank, ends everything within seconds; no process outlives this call, whatever ends it; one cause is
named.
"""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext

from shardwise.errors import WorkerFailedError
from shardwise.launch.failure import conclude
from shardwise.launch.follow import Follower, FollowUpdate, Notice, Phase, tell
from shardwise.launch.nodes.peers import Peers
from shardwise.launch.processes.command import require_torch
from shardwise.launch.processes.stop_requests import StopRequests
from shardwise.launch.ranks import Ranks, local_ranks
from shardwise.spec.cluster import DeviceKind
from shardwise.spec.run import RunDirectory

POLL_SECONDS = 0.2
#: How long ranks may live after one has failed: they wait for it, and would do so for long.
GRACE_SECONDS = 3.0


def forget_last_launch(run: RunDirectory) -> None:
    """Removes what an earlier launch said of its ranks and its end."""
    run.outcome.unlink(missing_ok=True)
    for pattern in ("rank_*.pid", "rank_*.failure.json", "rank_*.standing.json"):
        for path in run.logs.glob(pattern):
            path.unlink(missing_ok=True)


def run_workers(
    run: RunDirectory,
    *,
    processes: int,
    kind: DeviceKind = "cpu",
    max_restarts: int = 0,
    lock: int | None = None,
    waiting: Ranks | None = None,
    on_update: Callable[[FollowUpdate], None] | None = None,
) -> None:
    """Runs `processes` workers to their end; raises as `conclude` does. `kind`, `lock`: as of
    `local_ranks`; `max_restarts`: how often all of them are started again after one failed, from
    the last checkpoint; `waiting`: ranks that were started already, in whose place others are
    where these are not as many as needed; `on_update`: hears each new phase and step."""
    require_torch()
    with StopRequests() as requests:
        for restarts_left in reversed(range(max_restarts + 1)):
            forget_last_launch(run)
            if waiting is not None and len(waiting) != processes:
                waiting.close()
                waiting = None
            ready, waiting = waiting, None
            fresh = local_ranks(run, processes=processes, kind=kind, lock=lock)
            with fresh if ready is None else nullcontext(ready) as ranks:
                try:
                    follow_ranks(run, ranks, processes=processes, requests=requests, on_update=on_update)
                except WorkerFailedError as error:
                    if not restarts_left or requests.first is not None:
                        raise
                    how = str(error).splitlines()[0]
                    tell([Notice(text=f"{how}; all ranks are started again")], on_update)
                else:
                    return


def follow_ranks(
    run: RunDirectory,
    ranks: Ranks,
    *,
    processes: int,
    requests: StopRequests,
    on_update: Callable[[FollowUpdate], None] | None = None,
    peers: Peers | None = None,
) -> None:
    """Lets ranks begin, and hands on what the run writes until all end or a second request to stop.
    `ranks`: those that this process has started, of `processes` in the whole run; `peers`: the
    other machines, where there are some and nothing else looks after them. Raises as `conclude`
    does; on another node than the first, as node 0 does."""
    peers = peers or Peers()
    follower, told, deadline = Follower(run), False, math.inf
    try:
        ranks.begin()
        while ranks.look() and not requests.is_urgent:
            asked = requests.first
            if asked is not None and not told:
                tell([Phase(name="stopping", total_steps=None, detail={"signal": asked.name})], on_update)
                told = True
            tell(follower.updates(), on_update)
            if asked is not None:
                ranks.pass_on(asked)
            peers.look()
            peers.say(ranks.exits)
            if ranks.failed or peers.failed or any(run.logs.glob("rank_*.failure.json")):
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            if time.monotonic() > deadline:
                ranks.kill()
            requests.wait(POLL_SECONDS, until=ranks.have_ended)
    finally:
        ranks.close()
    peers.settle(ranks.exits)
    tell(follower.updates(), on_update)
    if not peers.conclude():
        conclude(
            run,
            failed=ranks.failed or peers.failed,
            exits=[*ranks.exits, *peers.exits],
            requests=requests,
            processes=processes,
            blame=peers.blame(),
            on_update=on_update,
        )
