"""The search against an exhaustive one without bounds."""

import random
from dataclasses import replace

import pytest

from shardwise.plan.answer import answer
from shardwise.plan.search.executions import bases, considered, offloads, sized, sizes_on
from shardwise.plan.search.goals import Found, doubt_of, tie_of
from shardwise.plan.search.layouts import layouts
from shardwise.plan.search.question import Question, ask, work_on
from shardwise.plan.search.search import Search, search_offloads
from shardwise.plan.time.step import forecast_time
from tests.marks import first
from tests.unit.plan.asking import forecast_memory, job, parse_hardware, shape


def exhaustive(question: Question) -> list[Found]:
    """All that fits, whatever it takes of the host."""
    found: list[Found] = []
    for offload in offloads(question.job, question.cluster):
        asked = question.with_offload(offload)
        for choice in layouts(asked.job, asked.model, asked.cluster):
            if considered(asked.job, asked.model, choice)[1] is None:
                for base in bases(asked.job, asked.model, choice):
                    for size in sizes_on(asked.job, base.layout.data_world_size):
                        work = work_on(asked, asked.cluster, sized(base, asked.job, size))
                        memory = forecast_memory(work)
                        if memory.peak_high_bytes <= memory.capacity_bytes:
                            found.append(Found(execution=work.execution, seconds=forecast_time(work).step_seconds))
    return found


def drawn(seed: int) -> Question:
    """A job on GPUs that hold between a sixth and one and a half of what AdamW needs for it."""
    draw = random.Random(seed)
    pick = draw.choice
    model = shape(num_hidden_layers=pick([4, 9, 16]), hidden_size=pick([512, 1024]), intermediate_size=2816)
    asked = job(
        method=pick(["full", "full", "lora"]),
        data={"max_length": pick([256, 1024, 4096])},
        train={"global_batch_size": pick([1, 4, 7, 16, 64]), "offload": pick(["auto", "none", "optimizer"])},
    )
    cluster = parse_hardware(pick(["1x L4", "2x RTX-4090", "4x L4", "4x H100-SXM", "3x L40S", "2 x 2x A100-80GB-SXM"]))
    needs = 16 * model.num_parameters / cluster.num_gpus
    gpu = replace(cluster.gpu, memory_bytes=int(2 * 2**30 + draw.uniform(0.15, 1.5) * needs), reserved_bytes=0)
    return ask(asked, model=model, cluster=replace(cluster, node=replace(cluster.node, gpu=gpu)))


@pytest.mark.parametrize("seed", first(4, range(16), ci=4))
def test_the_choice_is_within_a_percent_of_the_best_or_a_tie_with_it(seed: int) -> None:
    question = drawn(seed)
    every, chosen, cluster = exhaustive(question), answer(question).best, question.cluster
    assert bool(every) == (chosen is not None)
    if chosen is not None:
        found = [one.seconds for search in search_offloads(question) for one in search.found]
        assert min(found) <= 1.01 * min(one.seconds for one in every)
        least = min(one.seconds * doubt_of(one, cluster) for one in every)
        taken = Found(execution=chosen.execution, seconds=chosen.time.step_seconds)
        assert taken.seconds * doubt_of(taken, cluster) <= least * (1 + tie_of(cluster.gpu)) * 1.01


@pytest.mark.parametrize("seed", range(4))
def test_bounds_are_bounds_and_what_is_remembered_is_what_is_forecast(seed: int) -> None:
    question = drawn(seed)
    asked = question.with_offload(offloads(question.job, question.cluster)[-1])
    search = Search(asked)
    forecasts = search.forecasts
    for strategy in search.strategies.values():
        for base in strategy.bases:
            for size in sizes_on(asked.job, base.layout.data_world_size):
                execution = sized(base, asked.job, size)
                forecast = forecasts.of(execution)
                assert forecasts.memory.high_bytes(execution) == forecast.memory.peak_high_bytes
                assert forecasts.seconds(execution) == forecast.time.step_seconds
                assert forecasts.memory.least_bytes(execution) <= forecast.memory.peak_high_bytes
                least = forecasts.least_seconds(base, size) + forecasts.seconds_on_host(base)
                assert least <= forecast.time.step_seconds
                assert forecasts.least_seconds_of(base, size) <= 1.001 * forecast.time.step_seconds
