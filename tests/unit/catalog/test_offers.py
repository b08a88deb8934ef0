"""Sizes that hardware is rented in, at which prices, and lists of alternatives."""

import re
from dataclasses import replace

import pytest

from shardwise.catalog.gpus import find_gpu, known_gpus, parse_hardware
from shardwise.catalog.offers import alternatives, every_size, is_open, offered_hardware, offered_sizes, providers
from shardwise.catalog.prices import Price, PriceList, cited, price_lists, price_of
from shardwise.errors import HardwareError
from shardwise.spec.job.keys import Job
from shardwise.spec.request import Override, read_request
from tests.refusals import must_refuse
from tests.unit.house.tree import ROOT


@pytest.mark.parametrize(
    ("gpu", "names"),
    [
        ("RTX-4090", ["1x RTX-4090", "2x RTX-4090", "4x RTX-4090", "8x RTX-4090"]),
        ("H100-PCIe", ["1x H100-PCIe", "2x H100-PCIe", "4x H100-PCIe", "8x H100-PCIe"]),
        ("A10G", ["1x A10G", "4x A10G", "8x A10G"]),
        ("GB200", ["4x GB200", "72x GB200"]),
        ("H20", []),
    ],
)
def test_hardware_is_offered_in_the_sizes_of_some_provider(gpu: str, names: list[str]) -> None:
    assert [size.name for size in offered_sizes(find_gpu(gpu), most=128)] == names


def test_several_machines_are_offered_where_they_have_a_fabric_and_every_size_where_asked() -> None:
    sizes = offered_sizes(find_gpu("H100-SXM"), most=40)
    assert [size.name for size in sizes][-3:] == ["8x H100-SXM", "2 x 8x H100-SXM", "4 x 8x H100-SXM"]
    assert all((size.network is None) == (size.num_nodes == 1) for size in sizes)
    assert all(replace(parse_hardware(size.name), notes=()) == size for size in sizes)
    several = {kind[0].gpu.name for kind in offered_hardware(most=1024) if kind[-1].num_nodes > 1}
    assert several == {"A100-40GB", "A100-80GB", "H100-SXM", "H200", "B200", "GB200"}
    offered = offered_hardware(most=32)
    assert all(1 <= size.num_gpus <= 32 for kind in offered for size in kind)
    names = {kind[0].gpu.name for kind in offered}
    assert len(names) > 40
    assert not any(name.startswith("MI") for name in names)
    sizes = [size.name for size in every_size(parse_hardware("2 x 3x L4"), most=10)]
    assert sizes == ["1x L4", "2x L4", "3x L4", "2 x 3x L4", "3 x 3x L4"]
    assert [size.num_gpus for size in every_size(parse_hardware("H100-SXM"), most=24)] == [*range(1, 9), 16, 24]


@pytest.mark.parametrize("name", providers())
def test_every_provider_has_a_source_and_machines_of_gpus_that_are_known(name: str) -> None:
    provider = providers()[name]
    assert provider.source and provider.url.startswith("https://")
    assert provider.sizes.keys() <= known_gpus().keys()
    assert all(sizes == sorted(set(sizes)) and sizes[0] >= 1 for sizes in provider.sizes.values())
    assert set(provider.fabric) <= provider.sizes.keys()
    assert all(find_gpu(gpu).network.name != "ethernet100" for gpu in provider.fabric)


def test_a_list_is_what_is_written_with_commas_and_no_one_hardware() -> None:
    job = Job.model_validate({"model": "m", "hardware": ["4x A100-80GB", "8x L40S"]})
    assert job.hardware == "4x A100-80GB, 8x L40S"
    assert Job.model_validate(job.to_json()) == job
    assert [cluster.num_gpus for cluster in alternatives(job.hardware)] == [4, 8]
    written = " [ 4x A100-80GB, 8x L40S ] "
    assert Job.model_validate({"model": "m", "hardware": written}).hardware == job.hardware
    flag = Override.of_flag("--hardware", key="hardware", value=written)
    assert read_request(None, overrides=["model=m", flag]).job.hardware == job.hardware
    assert is_open(" Any ") and not is_open("4x A100-80GB")
    must_refuse(HardwareError, "leaves it open, which only `plan` answers; leave hardware out", parse_hardware, "any")
    must_refuse(HardwareError, "leaves it open", parse_hardware, "4x A100-80GB, 8x L40S")
    with pytest.raises(HardwareError, match="any stands for all hardware on offer and cannot be part of a list; write"):
        alternatives("Any, 4x A100-80GB")
    must_refuse(HardwareError, "A900", alternatives, "4x A900, 8x L40S")


@pytest.mark.parametrize("prices", price_lists(), ids=lambda prices: prices.date)
def test_every_list_says_when_it_was_written_and_every_price_is_of_a_known_gpu(prices: PriceList) -> None:
    assert re.fullmatch(r"20\d\d-[01]\d(-[0-3]\d)?", prices.date)
    assert prices.source and prices.url.startswith("https://")
    assert prices.usd_per_hour.keys() | prices.lowest.keys()
    assert prices.usd_per_hour.keys() | prices.lowest.keys() <= known_gpus().keys()
    each = [price for one in prices.usd_per_hour.values() for price in one.values()]
    assert all(0.02 <= price <= 20 for price in (*each, *prices.lowest.values()))


def test_typical_prices_are_medians_of_providers_and_cited_for_what_was_asked() -> None:
    assert price_of("H100-NVL") == Price(lowest=1.99, highest=6.98, typical=2.92, providers=3)
    gpu = find_gpu("H100-NVL").gpu
    assert (gpu.usd_per_hour, gpu.typical_usd_per_hour) == ((1.99, 6.98), 2.92)
    # Of a provider in two lists the first counts.
    assert price_of("GB200") == Price(lowest=8.0, highest=10.5, typical=9.25, providers=2)
    # Of a marketplace alone no typical price is known, of others none at all.
    assert price_of("RTX-4070-Ti") == Price(lowest=0.09, highest=0.09, typical=None, providers=0)
    assert price_of("Titan-RTX") is None
    one = cited(["MI300X"])
    assert (one.date, one.source) == ("2026-08-22", "gpurentalprices.com (CC BY 4.0)")
    several = cited(["MI300X", "A10G", "H20"])
    assert several.date == "2025-06 to 2026-08-22"
    assert several.source.startswith(f"{one.source}, {one.date}; ")
    assert several.source.endswith(", 2025-06")
    assert cited(["H20"]) is None
    # Their licence asks for it.
    assert "https://gpurentalprices.com" in (ROOT / "README.md").read_text(encoding="utf-8")
