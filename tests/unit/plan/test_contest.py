"""The choice where no strategy is looked at further than it could be chosen is that among the best of all of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardwise.catalog.gpus import parse_hardware
from shardwise.plan.contest import contest
from shardwise.plan.ranking import chosen_first, simplicity_of
from shardwise.spec.layout import Layout
from shardwise.spec.plan import Candidate
from tests.unit.plan.asking import plan

CLUSTER = parse_hardware("4x L4")
LAYOUTS = {
    "ddp": Layout(dp_replicate=4),
    "fsdp": Layout(dp_shard=4),
    "zero1": Layout(dp_shard=4, zero_stage=1, reshard_after_forward=False),
    "hsdp": Layout(dp_shard=2, dp_replicate=2),
    "tp": Layout(tp=4),
    "pp": Layout(pp=4),
}


@cache
def some() -> Candidate:
    best = plan("qwen2.5-0.5b", "4x L4", "method: lora\n").best
    assert best is not None
    return best


def candidates(seconds: dict[str, float]) -> dict[str, Candidate]:
    return {
        name: replace(
            some(),
            execution=replace(some().execution, layout=LAYOUTS[name]),
            time=replace(some().time, step_seconds=takes),
        )
        for name, takes in seconds.items()
    }


TAKES = st.dictionaries(st.sampled_from(sorted(LAYOUTS)), st.integers(80, 125).map(lambda n: n / 100), min_size=1)


@settings(max_examples=200, deadline=None)
@example(seconds={"ddp": 1.0, "fsdp": 0.96, "zero1": 0.94})
@example(seconds={"ddp": 1.04, "fsdp": 1.02, "zero1": 0.98, "hsdp": 0.95})
@given(seconds=TAKES)
def test_passing_over_what_cannot_be_chosen_changes_no_choice(seconds: dict[str, float]):
    every, gpu = candidates(seconds), CLUSTER.gpu
    names, asked = sorted(every, key=simplicity_of), list[str]()

    def best(way: int, within: tuple[float, ...] | None) -> Candidate | None:
        asked.append(names[way])
        takes = every[names[way]].time.step_seconds
        return every[names[way]] if within is None or (takes,) <= within else None

    found = contest(range(len(names)), best=best, goal="fastest", gpu=gpu)
    chosen = chosen_first(list(every.values()), goal="fastest", gpu=gpu)[0]
    assert chosen_first(list(found.values()), goal="fastest", gpu=gpu)[0] == chosen
    assert set(asked) == set(every)
