"""Hardware that is open: what is compared and shown, and what is said of prices."""

from collections.abc import Sequence

import pytest

from shardwise.catalog.gpus import find_gpu
from shardwise.catalog.offers import alternatives, offered_hardware, offered_sizes
from shardwise.errors import UnsupportedError
from shardwise.plan.explain.reasons import price_sentence
from shardwise.plan.hardware_options import GOALS, OWNED, SHOWN, best_of_catalogue, best_of_list
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.keys import Goal
from shardwise.spec.plan.file import plan_from_json
from shardwise.spec.plan.forecast import Plan, cost_text
from shardwise.spec.plan.offers import Offer
from tests.marks import first
from tests.speed import quiet_seconds
from tests.unit.plan.asking import find_model, job, plan

SMALL = "qwen2.5-0.5b"
#: Fast and slow, with and without a typical price, on every kind of link, of one to eight.
NAMES = ("T4", "RTX-4090", "RTX-4070-Ti", "H100-SXM", "A100-PCIe-80GB", "GH200")
WITHOUT = {"flash_attention_2": NAMES[:1], "flash_attention_3": (*NAMES[:3], NAMES[4]), "sdpa": ()}
JOBS = [{"method": "lora"}, {"method": "full", "train": {"global_batch_size": 64}}, {"data": {"max_length": 8192}}]


def sizes_of(*names: str, most: int = 8) -> list[list[Cluster]]:
    return [offered_sizes(find_gpu(name), most=most) for name in names]


def offered(model: str = SMALL, kinds: Sequence[Sequence[Cluster]] | None = None, **keys) -> Plan:
    return best_of_catalogue(job(**keys), model=find_model(model, offline=True), kinds=kinds or sizes_of(*NAMES))


def of_list(text: str, model: str = SMALL, **keys) -> Plan:
    return best_of_list(job(hardware=text, **keys), model=find_model(model, offline=True), clusters=alternatives(text))


def dollars(option: Offer) -> float:
    return option.typical_usd_per_million_tokens or float("inf")


@pytest.mark.parametrize(
    ("model", "keys"),
    [*((SMALL, keys) for keys in JOBS), ("llama-3.1-8b", {"method": "qlora"}), ("llama-3.1-8b", {"method": "full"})],
    ids=str,
)
def test_nothing_that_was_skipped_is_cheaper_and_faster_than_what_is_named(model: str, keys):
    skipped, every = offered(model, **keys).offers, [size.name for kind in sizes_of(*NAMES) for size in kind]
    known = {option.hardware: option for option in of_list(", ".join(every), model, **keys).offers.options}
    found = [known[option.hardware] for option in skipped.options if option.fits]
    assert all(option.step_seconds == known[option.hardware].step_seconds for option in skipped.options if option.fits)
    for option in skipped.options:
        fits = known[option.hardware].fits
        if option.fits is None and fits:
            assert any(
                dollars(one) <= 1.2 * dollars(known[option.hardware])
                and one.step_seconds <= 1.1 * known[option.hardware].step_seconds
                for one in found
            ), option.hardware
        elif option.fits is not None:
            assert option.fits == fits, option.hardware


@pytest.mark.parametrize("goal", GOALS)
def test_the_best_for_a_goal_has_the_fewest_gpus_of_what_is_alike(goal: Goal):
    options = offered(method="lora", goal=goal).offers.options
    first = options[0]
    assert goal in first.best_for
    fitting = [option for option in options if option.fits]
    if goal == "cheapest":
        alike = [one for one in fitting if dollars(one) <= 1.2 * min(map(dollars, fitting))]
    elif goal == "fastest":
        alike = [one for one in fitting if one.step_seconds <= 1.1 * min(one.step_seconds for one in fitting)]
    else:
        alike = fitting
    assert first.num_gpus == min(one.num_gpus for one in alike)


@pytest.mark.parametrize("keys", first(1, JOBS[:2], ci=1), ids=str)
def test_at_most_ten_rows_are_shown_and_none_between_is_beaten_by_another(keys):
    made = best_of_catalogue(job(**keys), model=find_model(SMALL, offline=True), kinds=offered_hardware(most=1024))
    found = made.offers
    assert 3 <= len(found.shown) <= SHOWN < len(found.options)
    owned = tuple(f"{count}x {name}" for count in (1, 2) for name in OWNED)
    between = [one for one in found.shown if not one.best_for and one.hardware not in owned]
    # The best single GPU has a row whatever beats it.
    assert any(one.num_gpus == 1 for one in found.shown)
    between = [one for one in between if one.num_gpus > 1]
    for one in between:
        faster = [other for other in found.shown if other.step_seconds < one.step_seconds]
        assert not any(dollars(other) <= dollars(one) for other in faster)
    fits = {one.hardware for one in found.options if one.fits}
    for name in OWNED:  # of each card that people own one or two have a row, where the job fits
        assert not fits & {f"1x {name}", f"2x {name}"} or any(one.hardware.endswith(name) for one in found.shown)
    for count in (1, 2):  # and so have the best one and the best two of them all
        assert {f"{count}x {name}" for name in OWNED} & {one.hardware for one in found.shown}
    assert {goal for one in found.shown for goal in one.best_for} == set(GOALS)
    assert found.options[: len(found.shown)] == found.shown


def test_the_plan_is_of_the_first_of_what_was_compared_and_the_smallest_has_least_memory() -> None:
    made = offered(method="lora", goal="cheapest", data={"num_rows": 1_000_000})
    first = made.offers.options[0]
    assert (made.hardware["name"], made.job["hardware"], made.job["goal"]) == (*[first.hardware] * 2, "cheapest")
    assert made.best.time.step_seconds == first.step_seconds
    start = first.total_seconds - made.best.time.total_seconds
    assert 300 < start < 400
    assert made.offers.notes()[0].startswith("runs and costs include starting: 5 min to boot")
    assert made.best.cost.usd + made.best.cost.usd_per_hour * start / 3600 == pytest.approx(first.typical_usd)
    assert first.usd[0] < first.typical_usd < first.usd[1]
    assert plan_from_json(made.to_json()) == made
    options = offered("llama-3.2-3b", method="lora").offers.options
    (smallest,) = (one for one in options if "fewest-gpus" in one.best_for)
    assert smallest.hardware == "1x RTX-4070-Ti"


def test_prices_are_said_as_what_they_are() -> None:
    cheap, dear = find_gpu("RTX-4070-Ti").gpu, find_gpu("RTX-4090").gpu
    assert cheap.usd_per_hour[0] < dear.usd_per_hour[0]
    found = of_list("1x RTX-4070-Ti, 1x RTX-4090", method="lora", goal="cheapest").offers
    assert found.sentence.startswith("cheapest: 1x RTX-4090 (")
    row = next(option for option in found.options if option.hardware == "1x RTX-4070-Ti")
    assert (*row.cells()[5:7], row.cost) == ("not known", "$0.090", "from $0.002 per 1M tokens")
    found = of_list("1x A10G, 1x L4", method="lora").offers
    assert {option.hardware: option.cells()[5] for option in found.shown} == {"1x A10G": "$1.01*", "1x L4": "$0.70"}
    assert found.prices.startswith(
        "typical: the median of providers' on-demand prices (*: of one), which costs are counted at; lowest: the "
        "lowest offer, which may be for a single machine; prices of 2025-06 to 2026-08-22: gpurentalprices.com "
    )
    assert "(*" not in of_list("1x L4", method="lora").offers.prices
    made = of_list("1x H20, 1x MI250", method="lora", goal="cheapest")
    assert made.offers.sentence.startswith("cheapest: not known, for nothing that fits has a typical price; ")
    assert made.offers.prices == "no price is known for what was compared"
    assert made.to_json()["prices"] is None
    assert plan_from_json(made.to_json()) == made


def test_several_machines_or_offload_are_offered_only_where_one_is_too_small() -> None:
    found = offered("llama-3-70b", sizes_of("H100-SXM", "B200", "RTX-4090", most=64)).offers
    assert {option.hardware for option in found.options if option.fits} >= {"2 x 8x H100-SXM", "8x B200"}
    assert not any(" x " in option.hardware for option in found.options if "B200" in option.hardware)
    assert not any(option.fits for option in found.options if "4090" in option.hardware)
    made = offered("llama-3.1-8b", sizes_of("L4", "H100-SXM"), goal="fewest-gpus")
    assert made.best.execution.offload == "none"
    assert made.job["train"]["offload"] == "auto"


def test_where_nothing_fits_the_plan_says_what_the_largest_lacks():
    made = offered("llama-3.1-405b", sizes_of("T4", "L4", most=4))
    found = made.offers
    assert made.best is None
    assert made.hardware["name"] == "4x L4"
    assert {option.fits for option in found.options} == {False}
    assert found.options[-1].reason == "the job does not fit in the 22.0 GiB that each GPU has"
    assert found.options[0].reason == "the job does not fit in the 14.6 GiB that the GPU has"
    assert found.sentence == "the job fits on nothing that was compared"
    assert found.notes() == [
        "1x T4: the job does not fit in the 14.6 GiB that the GPU has",
        "2x T4, 4x T4: the job does not fit in the 14.6 GiB that each GPU has",
        "1x L4: the job does not fit in the 22.0 GiB that the GPU has",
        "2x L4, 4x L4: the job does not fit in the 22.0 GiB that each GPU has",
    ]


def test_what_is_not_shown_is_counted():
    found = offered("llama-3.1-8b", offered_hardware(most=8), method="lora").offers
    others = sum(not option.shown and option.fits is not False for option in found.options)
    unfit = sum(option.fits is False for option in found.options)
    assert found.notes() == [
        f"{others} more are no better in price and time, or hardly; --json lists them",
        f"the job does not fit, or is not trained, on {unfit} more; --json says why",
    ]
    skipped = next(option for option in found.options if option.fits is None)
    better = skipped.reason.removeprefix("no better than ").removesuffix(" in price and time, or hardly")
    assert any(option.hardware == better and option.fits for option in found.options)


@pytest.mark.parametrize("goal", GOALS)
def test_of_a_list_the_best_for_the_goal_is_planned_for_as_a_whole(goal: Goal):
    made = of_list("8x H100-SXM, 4x RTX-4090", goal=goal)
    ranked = ["8x H100-SXM", "4x RTX-4090"] if goal == "fastest" else ["4x RTX-4090", "8x H100-SXM"]
    assert [option.hardware for option in made.offers.shown] == ranked
    assert made.hardware["name"] == ranked[0]
    assert made.candidates == plan(SMALL, ranked[0], "train: {offload: none}\n").candidates


def test_of_a_list_what_does_not_fit_or_cannot_be_formed_stands_last_with_its_sentence():
    small = of_list("1x T4, 1x H100-SXM", "llama-3.1-8b", method="lora").offers
    unformed = of_list("1x H100-SXM, 4x H100-SXM", layout={"dp_shard": 4}).offers
    for found in (small, unformed):
        assert [option.fits for option in found.options] == [True, False]
    assert "1x T4: needs 16.6 GiB, at most 16.8 GiB of 14.6 GiB at " in small.notes()[0]
    assert "multiplies out to 4 GPUs" in (unformed.options[1].reason or "")
    with pytest.raises(UnsupportedError, match="multiplies out to 4 GPUs"):
        of_list("1x H100-SXM, 1x T4", layout={"dp_shard": 4})


def test_of_a_list_the_hosts_memory_is_used_where_nothing_fits_without():
    made = of_list("2x RTX-4090, 1x RTX-A6000, 1x T4", "llama-3.1-8b")
    assert [one.hardware for one in made.offers.options if one.fits] == ["2x RTX-4090", "1x RTX-A6000"]
    assert made.best.execution.offload != "none" and made.offers.options[0].written.endswith(" + offload")
    without = of_list("1x RTX-4090, 1x H100-SXM", "llama-3.2-1b").offers
    assert {one.written for one in without.options if one.fits} == {"one process"}


@pytest.mark.parametrize(("kernel", "without"), WITHOUT.items())
def test_gpus_without_the_kernel_that_is_stated_are_passed_over_with_a_sentence(kernel: str, without: Sequence[str]):
    stated = {"train": {"attn_implementation": kernel}, "goal": "cheapest", "method": "lora"}
    for made in (offered(**stated), of_list(", ".join(f"1x {name}" for name in NAMES), **stated)):
        assert not made.best.not_trained
        sentence = f"is {kernel}, which needs"
        assert {o.hardware.split("x ")[-1] for o in made.offers.options if sentence in (o.reason or "")} == {*without}


def test_where_no_gpu_has_the_kernel_the_plan_says_that_it_is_not_trained():
    stated = {"train": {"attn_implementation": "flash_attention_3"}, "method": "lora"}
    for made in (offered(SMALL, sizes_of("T4", "L4"), **stated), of_list("1x T4, 4x L4", **stated)):
        assert any("needs a GPU like the H100" in sentence for sentence in made.best.not_trained)


@pytest.mark.parametrize("method", first(1, ["lora", "full"], ci=1))
def test_everything_on_offer_is_answered_in_seconds(method: str):
    asked = {"method": method, "data": {"max_length": 4096}, "train": {"global_batch_size": 32}, "goal": "cheapest"}
    made, kinds = list[Plan](), offered_hardware(most=1024)
    assert quiet_seconds(lambda: made.append(offered("llama-3.1-8b", kinds, **asked)), limit=5) < 5
    assert made[0].best is not None


def best_of(hardware, goal="fastest"):
    return plan("qwen2.5-0.5b", hardware, f"method: lora\ngoal: {goal}\n").best


def test_what_is_known_of_a_price_is_said_and_costs_begin_at_it() -> None:
    said = price_sentence(find_gpu("MI355X").gpu, goal="fastest")
    assert said.startswith("costs are at the one price known for the MI355X, $8.60 an hour (Oracle Cloud's price list")
    best = best_of("4x RTX-4070-Ti", "cheapest")
    said = "only a lowest offer is known for the RTX-4070-Ti, $0.090 an hour, which costs begin at"
    said += "; cheapest takes the fewest GPU hours"
    assert said in best.reasons
    assert best.cost.at_least
    assert best.cost.usd_per_hour == pytest.approx(0.09 * best.execution.layout.world_size)
    assert cost_text(best.cost) == f"from ${best.cost.usd_per_hour:.{3 if best.cost.usd_per_hour < 0.1 else 2}f}/h"


@pytest.mark.parametrize("goal", GOALS)
def test_without_a_price_a_plan_says_so_and_forecasts_no_cost(goal: Goal):
    best, ranked = best_of("2x H20", goal), "; cheapest takes the fewest GPU hours" if goal == "cheapest" else ""
    assert f"no price is known for the H20, so no cost is forecast{ranked}" in best.reasons
    assert (best.cost.usd, best.cost.usd_per_hour) == (None, None)
