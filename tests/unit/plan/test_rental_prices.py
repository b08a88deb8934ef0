"""What plans say of prices: what costs are counted at, or that none is known."""

import pytest

from shardwise.catalog.gpus import find_gpu
from shardwise.plan.explain.reasons import price_sentence
from shardwise.spec.job.keys import Goal
from shardwise.spec.plan.forecast import cost_text
from tests.unit.plan.asking import plan


def best_of(hardware, goal="fastest"):
    return plan("qwen2.5-0.5b", hardware, f"method: lora\ngoal: {goal}\n").best


def test_one_price_is_no_range():
    said = price_sentence(find_gpu("MI355X").gpu, goal="fastest")
    assert said == (
        "costs are at the one price known for the MI355X, $8.60 an hour (Oracle Cloud's price list, 2026-07-31)"
    )


@pytest.mark.parametrize(
    ("goal", "ranked"), [("fastest", ""), ("cheapest", "; cheapest takes the fewest GPU hours"), ("fewest-gpus", "")]
)
def test_without_a_price_a_plan_says_so_and_forecasts_no_cost(goal: Goal, ranked: str):
    best = best_of("2x H20", goal)
    assert f"no price is known for the H20, so no cost is forecast{ranked}" in best.reasons
    assert (best.cost.usd, best.cost.usd_per_hour) == (None, None)


def test_a_lowest_offer_is_said_and_costs_begin_at_it():
    best = best_of("4x RTX-4070-Ti", "cheapest")
    said = (
        "only a lowest offer is known for the RTX-4070-Ti, $0.090 an hour, which costs begin at; "
        "cheapest takes the fewest GPU hours"
    )
    assert said in best.reasons
    assert best.cost.at_least
    assert best.cost.usd_per_hour == pytest.approx(0.09 * best.execution.layout.world_size)
    assert cost_text(best.cost) == f"from ${best.cost.usd_per_hour:.{3 if best.cost.usd_per_hour < 0.1 else 2}f}/h"
