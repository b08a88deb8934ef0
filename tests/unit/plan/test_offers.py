"""Hardware that is open, against laying the job out on everything."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shardwise.catalog.gpus import find_gpu, parse_hardware
from shardwise.catalog.models import find_model
from shardwise.catalog.offers import alternatives, catalogue_sizes, rented_sizes
from shardwise.errors import UnsupportedError
from shardwise.plan.answer import answer, make_plan
from shardwise.plan.market import Market, figure
from shardwise.plan.offers import GOALS, best_of_catalogue, best_of_list
from shardwise.plan.search.executions import offloads
from shardwise.plan.search.goals import TIE_SHARE
from shardwise.plan.search.question import ask
from shardwise.plan.search.search import best_alone
from shardwise.spec.cluster import Cluster
from shardwise.spec.job import Goal, Job
from shardwise.spec.plan import Plan
from tests.speed import quiet_seconds
from tests.unit.plan.asking import job

SMALL = "qwen2.5-0.5b"
#: Fast and slow, priced and not, on links of every kind, with usual nodes of 8, 4 and 1.
NAMES = ("T4", "RTX-4090", "RTX-4060-Ti-16GB", "H100-SXM", "MI325X", "GH200")


def kinds(most: int = 8) -> list[list[Cluster]]:
    return [rented_sizes(find_gpu(name), most=most) for name in NAMES]


def market(model: str = SMALL, sizes: Sequence[Sequence[Cluster]] | None = None, **keys) -> Market:
    sizes = sizes or kinds()
    return Market(ask(job(**keys), model=find_model(model, offline=True), cluster=sizes[0][0]), sizes)


def offered(model: str = SMALL, sizes: Sequence[Sequence[Cluster]] | None = None, **keys) -> Plan:
    return best_of_catalogue(job(**keys), model=find_model(model, offline=True), kinds=sizes or kinds())


JOBS = [{"method": "lora"}, {"method": "full", "train": {"global_batch_size": 64}}, {"data": {"max_length": 8192}}]


@pytest.mark.parametrize("keys", JOBS, ids=str)
def test_no_layout_is_faster_than_what_a_size_could_reach(keys):
    asked = market(**keys)
    assert asked.open
    for size in asked.open:
        found = asked.lay_out(size)
        assert found is not None
        assert asked.at_least(size) <= found.time.step_seconds, size.name


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("keys", JOBS[:2], ids=str)
def test_the_best_is_the_best_of_all_that_fit(keys, goal: Goal):
    asked, everything = market(**keys), market(**keys)
    takes = {
        size.name: figure(goal, size, step_seconds=found.time.step_seconds)
        for size in everything.open
        if (found := everything.lay_out(size)) is not None
    }
    ((size, _),) = asked.best(goal, kinds=1)
    least = min(takes.values())
    # Of one GPU, a larger size is taken only where forecasts can tell that it is better.
    assert takes[size.name][0] <= least[0] * (1 + TIE_SHARE)
    assert size.gpu.name == next(name for name, one in takes.items() if one == least).split("x ")[-1]


def test_what_fits_is_what_the_plan_says_of_each_size():
    fitting = {size.name for size in market("llama-3.2-3b").open}
    for kind in kinds():
        for size in kind:
            asked = job(train={"offload": "none"})
            made = make_plan(asked, model=find_model("llama-3.2-3b", offline=True), cluster=size)
            assert (size.name in fitting) == (made.best is not None), size.name


def test_the_candidate_alone_is_the_one_that_the_plan_chooses():
    for size in (parse_hardware(name) for name in ("1x L4", "4x L4", "8x H100-SXM", "2 x 4x RTX-4090")):
        for keys in JOBS:
            question = ask(job(**keys), model=find_model("llama-3.2-1b", offline=True), cluster=size)
            for offload in offloads(question.job, size):
                stated = question.with_offload(offload)
                chosen, alone = answer(stated).best, best_alone(stated)
                assert (alone and alone.execution) == (chosen and chosen.execution)


def test_the_plan_is_that_of_the_job_on_the_first_of_what_was_compared():
    made = offered(method="lora", goal="cheapest", data={"num_rows": 1000})
    assert made.offers is not None
    first = made.offers.options[0]
    assert (made.hardware["name"], made.job["hardware"], made.job["goal"]) == (*[first.hardware] * 2, "cheapest")
    assert made.best is not None
    assert made.best.time.step_seconds == first.step_seconds
    assert first.usd is not None
    assert made.best.cost.usd == pytest.approx(sum(first.usd) / 2)
    assert Plan.from_json(made.to_json()) == made


def test_every_goal_has_its_best_and_every_gpu_its_line():
    made = offered("llama-3.1-8b", method="lora")
    assert made.offers is not None
    named = [goal for option in made.offers.options for goal in option.best_for]
    assert sorted(named) == sorted(GOALS)
    assert {option.hardware.split("x ")[-1] for option in made.offers.options} == set(NAMES)
    assert all(option.fits or "GiB of" in (option.reason or "") for option in made.offers.options)
    assert all(option.step_seconds or option.reason for option in made.offers.options)


def test_without_a_price_a_gpu_is_never_the_cheapest_and_never_left_out():
    names = ("RTX-4060-Ti-16GB", "H20", "MI250")
    sizes = [*kinds(), *(rented_sizes(find_gpu(name), most=8) for name in names[1:])]
    made = offered(sizes=sizes, method="lora", goal="cheapest")
    assert made.offers is not None
    unpriced = [option for option in made.offers.options if option.hardware.endswith(names)]
    assert len(unpriced) >= len(names)
    assert not any("cheapest" in option.best_for for option in unpriced)
    assert any(option.reason == "no price known" for option in unpriced)


def test_where_nothing_has_a_price_the_cheapest_is_said_to_be_unknown():
    clusters = alternatives("1x H20, 1x MI250")
    made = best_of_list(job(method="lora", goal="cheapest"), model=find_model(SMALL, offline=True), clusters=clusters)
    assert made.offers is not None
    assert made.offers.sentence.startswith("cheapest: not known, for nothing that fits has a price; ")
    assert made.offers.prices == "no price is known for what was compared"
    assert made.to_json()["prices"] is None
    assert Plan.from_json(made.to_json()) == made


def test_what_was_laid_out_without_a_price_is_named():
    clusters = alternatives("1x H20, 1x L4")
    made = best_of_list(job(method="lora", goal="cheapest"), model=find_model(SMALL, offline=True), clusters=clusters)
    assert made.offers is not None
    assert made.offers.sentence.startswith("cheapest: 1x L4 (")
    assert "no price is known for 1x H20" in made.offers.notes()
    assert made.offers.price_date == "2026-07-02 to 2026-08-22"


def test_several_nodes_are_offered_only_where_a_usual_size_is_too_small():
    asked = market("llama-3-70b", kinds(most=64))
    sizes = {size.gpu.name: size for size in asked.open}
    assert sizes["H100-SXM"].name == "2 x 8x H100-SXM"
    assert sizes["MI325X"].num_gpus <= 8


def test_where_nothing_fits_every_gpu_says_what_it_lacks():
    made = offered("llama-3.1-405b", [rented_sizes(find_gpu(name), most=4) for name in ("T4", "L4")])
    assert made.best is None
    assert made.offers is not None
    assert [option.fits for option in made.offers.options] == [False, False]
    assert all("GiB of" in (option.reason or "") for option in made.offers.options)
    assert made.offers.sentence == "the job fits on nothing that was compared"


def of_list(text: str, **keys) -> Plan:
    asked: Job = job(hardware=text, **keys)
    return best_of_list(asked, model=find_model(SMALL, offline=True), clusters=alternatives(text))


@pytest.mark.parametrize(
    ("goal", "hardware"), [("fastest", "8x H100-SXM"), ("cheapest", "4x RTX-4090"), ("fewest-gpus", "4x RTX-4090")]
)
def test_of_a_list_the_best_for_the_goal_is_planned_for(goal: Goal, hardware: str):
    made = of_list("8x H100-SXM, 4x RTX-4090", goal=goal)
    assert made.hardware["name"] == hardware
    alone = make_plan(job(goal=goal), model=find_model(SMALL, offline=True), cluster=parse_hardware(hardware))
    assert made.candidates == alone.candidates
    assert made.offers is not None
    assert len(made.offers.options) == 2


def test_what_a_list_names_in_vain_stands_behind_with_its_sentence():
    made = of_list("1x H100-SXM, 4x H100-SXM", layout={"dp_shard": 4})
    assert made.offers is not None
    assert [option.fits for option in made.offers.options] == [True, False]
    assert "multiplies out to 4 GPUs" in (made.offers.options[1].reason or "")
    with pytest.raises(UnsupportedError, match="multiplies out to 4 GPUs"):
        of_list("1x H100-SXM, 1x T4", layout={"dp_shard": 4})


@pytest.mark.parametrize(
    ("kernel", "without"),
    [
        ("flash_attention_2", {"T4"}),
        ("flash_attention_3", {"T4", "RTX-4090", "RTX-4060-Ti-16GB", "MI325X"}),
        ("sdpa", set[str]()),
    ],
)
def test_gpus_without_the_kernel_that_is_stated_are_passed_over_with_a_sentence(kernel: str, without: set[str]):
    """With the cheapest GPU of all among them."""
    stated = {"train": {"attn_implementation": kernel}, "goal": "cheapest", "method": "lora"}
    made, names = offered(**stated), "1x T4, 1x RTX-4090, 1x H100-SXM"
    assert made.best is not None and not made.best.not_trained
    for plan in (made, of_list(names, **stated)):
        assert plan.offers is not None and plan.best is not None and not plan.best.not_trained
        refused = {
            o.hardware.split("x ")[-1] for o in plan.offers.options if f"is {kernel}, which needs" in (o.reason or "")
        }
        assert refused == without & ({*NAMES} if plan is made else {"T4", "RTX-4090", "H100-SXM"})


def test_where_no_gpu_has_the_kernel_the_plan_says_that_it_is_not_trained():
    stated = {"train": {"attn_implementation": "flash_attention_3"}, "method": "lora"}
    sizes = [rented_sizes(find_gpu(name), most=4) for name in ("T4", "L4")]
    for made in (offered(SMALL, sizes, **stated), of_list("1x T4, 4x L4", **stated)):
        assert made.best is not None
        assert any("needs a GPU like the H100" in sentence for sentence in made.best.not_trained)


def test_the_whole_catalogue_is_answered_in_seconds():
    asked = {"method": "lora", "data": {"max_length": 4096}, "train": {"global_batch_size": 64}, "goal": "cheapest"}
    made = []
    assert quiet_seconds(lambda: made.append(offered("llama-3.1-8b", catalogue_sizes(most=1024), **asked)), limit=5) < 5
    assert made[0].best is not None
