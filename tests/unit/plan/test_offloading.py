"""What `train.offload: auto` becomes is the best of what stating each finds, and the least of those that are alike."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import find_model
from shardwise.plan.answer import answer
from shardwise.plan.search.executions import offloads
from shardwise.plan.search.goals import tie_of
from shardwise.plan.search.question import Question, ask
from shardwise.plan.search.search import Search
from shardwise.spec.job.file import parse_job
from shardwise.spec.plan.forecast import Candidate
from tests.marks import every_second
from tests.unit.plan.asking import job, plan, shape

_LORA_ON_ANY_PART = "goal: cheapest\nmethod: lora\ndata: {max_length: 8192}\n"
#: (model, hardware, job): more than the least offload that anything fits with is better in these.
BETTER_OFFLOADED = {
    "qwen3-8b": ("qwen3-8b", "4x RTX-4090", "data: {max_length: 1024}\n"),
    "llama-3.1-8b": ("llama-3.1-8b", "4x L4", "data: {max_length: 2048}\n"),
    "stated": ("qwen3-8b", "4x RTX-4090", "layout: [mp, pp, fsdp]\ndata: {max_length: 1024}\n"),
}


def question(model: str, hardware: str, text: str, batch: int = 64) -> Question:
    asked = parse_job(f"model: {model}\n{text}train: {{global_batch_size: {batch}}}\n")
    return ask(asked, model=find_model(model, offline=True), cluster=parse_hardware(hardware))


def stated(asked: Question) -> dict[str, Candidate]:
    """The best of each offload that something fits with, on hosts that are as large as auto takes them to be."""
    bests = {one: answer(asked.with_offload(one)).best for one in offloads(asked.job, asked.cluster)}
    return {offload: best for offload, best in bests.items() if best is not None}


def check_is_best(asked: Question) -> Candidate | None:
    """That a plan's choice is within the tie of the best of all offloads."""
    chosen, each = answer(asked).best, stated(asked)
    if chosen is None:
        assert not each
        return None
    best = min(each.values(), key=lambda one: one.time.step_seconds)
    assert chosen.time.step_seconds <= best.time.step_seconds * (1 + tie_of(asked.cluster.gpu))
    return chosen


@pytest.mark.parametrize("name", BETTER_OFFLOADED)
def test_more_offload_is_taken_where_it_is_better(name):
    chosen = check_is_best(question(*BETTER_OFFLOADED[name]))
    assert chosen is not None
    assert chosen.execution.offload == "parameters"


def tight(seed: int) -> Question:
    """A job on GPUs that hold between a sixth and all of what AdamW needs for it, beside what a process takes."""
    draw = random.Random(seed)
    pick = draw.choice
    model = shape(num_hidden_layers=pick([4, 9]), hidden_size=pick([512, 1024]), intermediate_size=pick([1408, 2816]))
    asked = job(
        method=pick(["full", "full", "lora"]),
        data={"max_length": pick([256, 1024])},
        train={"global_batch_size": pick([4, 16])},
    )
    cluster = parse_hardware(
        pick(["1x L4", "3x RTX-4090", "4x L4", "2 x 2x A100-80GB-SXM", "6 x 1x RTX-4090", "5 x 4x L4"])
    )
    needs = 16 * model.num_parameters / cluster.num_gpus
    gpu = replace(cluster.gpu, memory_bytes=int(1.1 * 2**30 + draw.uniform(0.15, 1.0) * needs), reserved_bytes=0)
    return ask(asked, model=model, cluster=replace(cluster, node=replace(cluster.node, gpu=gpu)))


@pytest.mark.parametrize("seed", every_second(range(24)))
def test_auto_is_the_best_of_all_offloads(seed):
    check_is_best(tight(seed))


#: (model, hardware, job), each with fewer GPUs than do without offload.
FEWEST = {
    "one GPU and the host": ("gemma-2-9b", "8x H100-SXM", "data: {max_length: 8192}\ntrain: {global_batch_size: 8}\n"),
    "as large as the host is": ("llama-3.1-70b", "8x H100-SXM", "train: {global_batch_size: 64}\n"),
    "adapters": ("mixtral-8x7b", "8x L4", "method: lora\ntrain: {global_batch_size: 64}\n"),
    "pipelines alone": ("qwen3-8b", "4x RTX-4090", "layout: [pp, mp]\ntrain: {global_batch_size: 64}\n"),
}


def test_a_plan_says_what_offload_is_good_for_and_what_would_be_without():
    made = plan("qwen3-8b", "4x RTX-4090", "data: {max_length: 1024}\ntrain: {global_batch_size: 64}\n")
    assert made.best is not None
    (sentence,) = (one for one in made.best.reasons if one.startswith("offload is"))
    assert sentence.startswith(
        "offload is parameters because nothing fits without, and fsdp x tp, the best with offload optimizer, is 46.2 %"
    )
    others = {one.strategy: one.reason for one in made.rejected}
    assert others["fsdp x tp"].startswith("46 % slower with offload optimizer (21 s against 15 s a step): ")
    assert "waits for other stages or the host" in others["fsdp x mp"]
    pipelines = "layout: [pp]\ndata: {max_length: 1024}\ntrain: {global_batch_size: 64}\n"
    held = plan("qwen3-8b", "4x RTX-4090", pipelines).best
    assert held.execution.offload == "parameters"
    assert held.time.step_seconds > made.best.time.step_seconds


def test_the_fewest_gpus_may_need_the_hosts_memory_and_the_plan_says_how_many_do_without():
    text = "goal: fewest-gpus\ndata: {max_length: 4096}\ntrain: {global_batch_size: 64}\n"
    fewest = plan("llama-3.1-8b", "8x H100-SXM", text).best
    assert (fewest.execution.layout.world_size, fewest.execution.offload) == (1, "parameters")
    assert any(
        one.startswith("offload is parameters because nothing fits so few GPUs without: ") for one in fewest.reasons
    )
    assert "without offload the fewest GPUs are 2; to have those, state train.offload: none" in fewest.reasons
    without = plan("llama-3.1-8b", "8x H100-SXM", text.replace("train: {", "train: {offload: none, ")).best
    assert without.execution.layout.world_size == 2
    assert fewest.time.step_seconds > 3 * without.time.step_seconds
    few = plan("qwen3-8b", "4x RTX-4090", text).best
    assert few.execution.layout.world_size == 3
    note = "with no more than offload optimizer the fewest GPUs are 4; to have those, state train.offload: optimizer"
    assert note in few.reasons


@pytest.mark.parametrize("name", FEWEST)
def test_no_offload_does_with_fewer_gpus_than_the_fewest(name):
    """Each number of GPUs below, asked about alone with each offload, holds nothing."""
    model, hardware, text = FEWEST[name]
    found, cluster = plan(model, hardware, f"goal: fewest-gpus\n{text}").best, parse_hardware(hardware)
    assert found is not None
    job, shape = parse_job(f"model: m\n{text}"), find_model(model, offline=True)
    whole = ask(job, model=shape, cluster=cluster)
    for count in range(1, found.execution.layout.world_size + 1):
        part = replace(cluster, node=replace(cluster.node, num_gpus=count), num_nodes=1, network=None)
        fitting = {
            one: Search(replace(whole, cluster=part).with_offload(one)).something_fits() for one in offloads(job, part)
        }
        assert any(fitting.values()) is (count == found.execution.layout.world_size), (count, fitting)
        if any(fitting.values()):
            assert fitting[found.execution.offload]


def test_on_the_fewest_gpus_offloads_compete():
    """Nothing fits two GPUs without any, and with `optimizer` it is slower than with `parameters`."""
    text = "data: {max_length: 1024}\ntrain: {global_batch_size: 64}\n"
    fewest = plan("qwen3-8b", "4x RTX-4090", f"goal: fewest-gpus\n{text}").best
    on_as_many = plan("qwen3-8b", f"{fewest.execution.layout.world_size}x RTX-4090", text).best
    assert fewest.execution == on_as_many.execution
