"""What GPUs are rented for: every price with its date and source, and none where none was found."""

import re

import pytest
from tools.prices import ranges

from shardwise.catalog.gpus import find_gpu, known_gpus
from shardwise.catalog.prices import PriceList, cited, price_lists, price_of
from tests.unit.house.tree import ROOT

#: What no price page and no catalogue that says when it was read has, on demand and under this name.
WITHOUT_A_PRICE = {
    *("Titan-RTX", "RTX-3060-Ti", "RTX-4060-Ti-16GB", "RTX-4500-Ada", "V100-32GB"),
    *("H800", "H20", "MI210", "MI250", "MI250X"),
}


@pytest.mark.parametrize("prices", price_lists(), ids=lambda prices: prices.date)
def test_every_list_says_when_it_was_written_and_where_it_is(prices: PriceList):
    assert re.fullmatch(r"20\d\d-[01]\d(-[0-3]\d)?", prices.date)
    assert prices.source
    assert re.match(r"https://", prices.url)


@pytest.mark.parametrize("prices", price_lists(), ids=lambda prices: prices.date)
def test_every_price_is_a_plausible_range_of_a_gpu_that_is_known_by_that_name(prices: PriceList):
    assert prices.usd_per_hour
    assert prices.usd_per_hour.keys() <= known_gpus().keys()
    assert all(0.02 <= low <= high <= 20 for low, high in prices.usd_per_hour.values())


def test_a_price_is_the_range_of_all_lists_that_have_the_gpu():
    having = [prices.usd_per_hour["GB200"] for prices in price_lists() if "GB200" in prices.usd_per_hour]
    assert len(having) > 1
    assert price_of("GB200") == (min(low for low, _ in having), max(high for _, high in having))
    assert find_gpu("GB200").gpu.usd_per_hour == price_of("GB200")


def test_gpus_have_a_price_but_those_for_which_none_was_found():
    assert {name for name, known in known_gpus().items() if known.gpu.usd_per_hour is None} == WITHOUT_A_PRICE


def test_a_citation_names_the_documents_of_the_gpus_that_were_asked_about_and_no_others():
    one = cited(["MI300X"])
    assert one is not None
    assert (one.date, one.source) == ("2026-08-22", "gpurentalprices.com (CC BY 4.0)")
    several = cited(["MI300X", "A10G", "H20"])
    assert several is not None
    assert several.date == "2025-06 to 2026-08-22"
    assert several.source.startswith(f"{one.source}, {one.date}; ")
    assert several.source.endswith(", 2025-06")
    assert cited(["H20"]) is None


def test_a_dearer_gpu_of_one_family_is_not_the_cheaper_to_rent():
    for cheaper, dearer in (("L4", "L40S"), ("A100-80GB", "H100-SXM"), ("H100-SXM", "H200"), ("H200", "B200")):
        low, high = find_gpu(cheaper).gpu.usd_per_hour, find_gpu(dearer).gpu.usd_per_hour
        assert low is not None
        assert high is not None
        assert sum(low) < sum(high)


def offer(gpu: str, usd_hr: float, *, kind: str = "on-demand", provider: str = "lambda") -> dict[str, object]:
    return {"gpu": gpu, "usd_hr": usd_hr, "kind": kind, "provider": provider}


def test_a_snapshot_becomes_ranges_without_what_is_taken_away_or_of_no_one_product():
    offers = [
        offer("l4", 0.5),
        offer("l4", 1.0, kind="secure"),
        offer("l4", 0.4, kind="community"),
        offer("l4", 0.1, kind="spot"),
        offer("l4", 0.9, kind="serverless"),
        offer("l4", 0.2, kind="community", provider="salad"),
        offer("l4", 3.1),
        offer("h100", 2.0),
        offer("rtx-pro-6000", 1.5),
        offer("rtx-pro-6000-wk", 1.7),
        offer("rtx-pro-6000-server", 1.9),
    ]
    assert ranges(offers) == {
        "L4": (0.4, 1.0),
        "RTX-PRO-6000-Blackwell": (1.5, 1.7),
        "RTX-PRO-6000-Blackwell-Server": (1.9, 1.9),
    }


def test_the_readme_names_whose_prices_these_are():
    """Their licence asks for it."""
    assert "https://gpurentalprices.com" in (ROOT / "README.md").read_text(encoding="utf-8")
