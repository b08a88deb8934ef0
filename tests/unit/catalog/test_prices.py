"""What GPUs are rented for: every price with its date and source, and none where none was found."""

import re

import pytest

from shardwise.catalog.gpus import find_gpu, known_gpus
from shardwise.catalog.prices import Price, PriceList, cited, price_lists, price_of
from tests.unit.house.tree import ROOT


@pytest.mark.parametrize("prices", price_lists(), ids=lambda prices: prices.date)
def test_every_list_says_when_it_was_written_and_every_price_is_of_a_known_gpu(prices: PriceList):
    assert re.fullmatch(r"20\d\d-[01]\d(-[0-3]\d)?", prices.date)
    assert prices.source and prices.url.startswith("https://")
    assert prices.usd_per_hour.keys() | prices.lowest.keys()
    assert prices.usd_per_hour.keys() | prices.lowest.keys() <= known_gpus().keys()
    each = [price for one in prices.usd_per_hour.values() for price in one.values()]
    assert all(0.02 <= price <= 20 for price in (*each, *prices.lowest.values()))


def test_the_typical_price_is_the_median_of_providers_and_lowest_offers_have_no_part_in_it():
    price = price_of("H100-NVL")  # three providers, one of them with two clouds, and a marketplace
    assert price == Price(lowest=1.99, highest=6.98, typical=3.055, providers=4)
    gpu = find_gpu("H100-NVL").gpu
    assert (gpu.usd_per_hour, gpu.typical_usd_per_hour) == ((1.99, 6.98), 3.055)
    # Of a provider in two lists the first counts.
    assert price_of("GB200") == Price(lowest=8.0, highest=10.5, typical=9.25, providers=2)
    # Of a marketplace alone no typical price is known, of others none at all.
    assert price_of("RTX-4070-Ti") == Price(lowest=0.09, highest=0.09, typical=None, providers=0)
    assert price_of("Titan-RTX") is None


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


def test_the_readme_names_whose_prices_these_are():
    # Their licence asks for it.
    assert "https://gpurentalprices.com" in (ROOT / "README.md").read_text(encoding="utf-8")
