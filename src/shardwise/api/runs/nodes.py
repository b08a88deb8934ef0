"""`train` on several machines, each of which the user starts: node 0 prepares."""

import uuid
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from shardwise.api.runs.opening import OnUpdate, Opening, Planned
from shardwise.api.runs.training import TrainResult, asked, result
from shardwise.errors import InputError
from shardwise.launch.follow import Notice, tell
from shardwise.launch.nodes.meeting import Nodes, gather, join, listen
from shardwise.launch.nodes.peers import Peers, word_of
from shardwise.launch.processes.command import require_torch
from shardwise.launch.processes.stop_requests import StopRequests
from shardwise.launch.processes.torchrun import place_in_group
from shardwise.launch.processes.workers import follow_ranks
from shardwise.launch.ranks import local_ranks
from shardwise.launch.requirements import check_present, check_trainable, share_of_nodes, training_cluster
from shardwise.launch.run_folder import Before, taken_back_on_error
from shardwise.spec.job.keys import Job
from shardwise.spec.plan.file import read_plan
from shardwise.spec.request import Override, Request
from shardwise.spec.run import RunDirectory, write_json


def train_on_nodes(
    job: Job | str | Path,
    *,
    nodes: Nodes,
    overrides: Sequence[str | Override] = (),
    on_update: OnUpdate = None,
    replan: bool = True,
) -> TrainResult:
    """Trains a job on several machines; called on each, with the same job. Arguments and errors are
    those of `train`; on every node the error is node 0's, or names the node that is gone."""
    if place_in_group() is not None:
        raise InputError(
            "--nodes is for machines on which you start the job yourself; without it under torchrun or srun"
        )
    request, run = asked(job, overrides)
    # A goal that would choose fewer GPUs than there are has no say.
    request = replace(request, job=request.job.model_copy(update={"goal": "fastest"}))
    if nodes.rank > 0:
        return _train_as_other(request, run, nodes=nodes, on_update=on_update)
    return _train_as_first(request, run, nodes=nodes, on_update=on_update, replan=replan)


def _train_as_first(
    request: Request, run: RunDirectory, *, nodes: Nodes, on_update: OnUpdate, replan: bool
) -> TrainResult:
    before = Before.of(run)
    with ExitStack() as held:
        server = held.enter_context(listen(nodes))
        place = share_of_nodes(request, nodes)
        opening = Opening.of(request, run, place=place, held=held, on_update=on_update)
        kind = opening.planning.cluster.gpu.kind
        with taken_back_on_error(run, before):
            peers = gather(nodes, server, say=opening.say)
            held.enter_context(_telling(peers))
            _check_shared(run, peers)
            if not opening.goes_on(replan=replan):
                return result(run, outcome="already_finished")
            opening.write()
            started = local_ranks(
                run,
                nodes=nodes,
                processes=place.local_size,
                kind=kind,
                host=peers.address,
                server=server,
                family=opening.family,
                lock=opening.lock,
            )
            ranks = held.enter_context(started)
            opening.prepare()
        begin = {"kind": kind, "processes": place.local_size, "run": str(run.root.resolve())}
        peers.send({"begin": True, **begin})
        requests = held.enter_context(StopRequests())
        follow_ranks(run, ranks, processes=place.size, requests=requests, on_update=on_update, peers=peers)
    return result(run, outcome="finished")


def _train_as_other(request: Request, run: RunDirectory, *, nodes: Nodes, on_update: OnUpdate) -> TrainResult:
    require_torch()
    place = share_of_nodes(request, nodes)
    cluster = training_cluster(request, place=place)
    check_trainable(request, cluster=cluster)
    check_present(request, cluster)
    with ExitStack() as held:
        peers = join(nodes, say=lambda text: tell([Notice(text=text)], on_update))
        held.callback(peers.close)
        begin = peers.await_begin()
        if not begin["begin"]:
            return result(run, outcome="already_finished")
        run = RunDirectory(Path(begin["run"]))
        tell([Planned(plan=read_plan(run.plan), run=run)], on_update)
        kind, local = cluster.gpu.kind, place.local_size
        if (kind, local) != (begin["kind"], begin["processes"]):
            error = InputError(
                f"node 0 trains with {begin['processes']} {begin['kind']} processes on each machine, and node "
                f"{nodes.rank} has {local} of {kind}; name the hardware in the job, or take alike machines"
            )
            peers.send(word_of(error))
            raise error
        ranks = held.enter_context(local_ranks(run, nodes=nodes, processes=local, kind=kind, host=peers.address))
        requests = held.enter_context(StopRequests())
        follow_ranks(run, ranks, processes=place.size, requests=requests, on_update=on_update, peers=peers)
    return result(run, outcome="finished")


@contextmanager
def _telling(peers: Peers) -> Generator[None]:
    try:
        yield
    except BaseException as error:
        peers.send(word_of(error))
        raise
    else:
        peers.send(word_of(None))
    finally:
        peers.close()


def _check_shared(run: RunDirectory, peers: Peers) -> None:
    """A file of this start, which no other node can have made."""
    seen = run.logs / f"nodes-{uuid.uuid4().hex}.json"
    write_json(seen, {"seen": True})
    try:
        peers.check_seen(seen)
    finally:
        seen.unlink(missing_ok=True)
