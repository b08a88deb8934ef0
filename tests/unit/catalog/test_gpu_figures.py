"""Figures of GPUs, held against rules of their architectures and against the traps of data sheets."""

import tomllib
from importlib import resources

import pytest

from shardwise.catalog.gpus import find_gpu
from shardwise.units import GIB

#: Tera-operations that data sheets print in large type, with sparsity: half of it is what dense products can reach.
#: The L40S is printed as 733, beside 362.05 without.
SPARSE = """
L4 242  L40 362  L40S 724.1  A10 250  A10G 140  A30 330  A40 299.4  A100-80GB 624  A100-PCIe-40GB 624  H100-PCIe 1513
H100-SXM 1979  H100-NVL 1671  H200 1979  H20 296  GH200 1979  B200 4500  GB200 5000  MI300X 2614.9  MI355X 5033
RTX-6000-Ada 728.5  RTX-A6000 309.7  RTX-A5000 222.2  RTX-4090 330.3  RTX-5090 419  RTX-3090 142
"""
#: Gigabytes in the name of the product or on its page.
SOLD_AS = """
A10 24  A10G 24  A30 24  A40 48  L4 24  L40 48  L40S 48  T4 16  A100-40GB 40  A100-80GB 80  H100-SXM 80  H100-PCIe 80
H100-NVL 94  H200 141  H20 96  GH200 96  RTX-3060 12  RTX-3090 24  RTX-4090 24  RTX-5090 32  RTX-A6000 48
RTX-6000-Ada 48  RTX-4500-Ada 24  RTX-PRO-6000-Blackwell 96  RTX-PRO-6000-Blackwell-Server 96  Titan-RTX 24
MI250X 64  MI300X 192  MI325X 256  MI355X 288
"""
#: GiB that PyTorch prints as the capacity, of messages of too little memory that others published.
PRINTED = "A100-80GB 79.25  A800-80GB 79.33  A100-40GB 39.5  A30 23.53  RTX-4090 23.64  RTX-5090 31.37  RTX-A4000 15.61"
#: GB/s of links in one direction: half of what vendors print; AMD's are shared by the two dies of a card.
LINKS = "A100 300  H100 450  H800 200  B200 900  RTX-4090 31.5  MI250X 200  MI250 150"


def figures(text):
    words = text.split()
    return list(zip(words[::2], map(float, words[1::2]), strict=True))


@pytest.mark.parametrize(("name", "printed"), figures(SPARSE))
def test_peaks_are_dense_and_not_what_is_printed_with_sparsity(name, printed):
    assert find_gpu(name).gpu.dense_flops["bfloat16"] == pytest.approx(printed / 2 * 1e12, rel=0.01)


@pytest.mark.parametrize(("name", "gigabytes"), figures(SOLD_AS))
def test_memory_is_what_the_driver_reports_of_what_is_sold(name, gigabytes):
    # HBM is sold in thousands of millions of bytes, and a part is kept for error correction; GDDR in powers of two.
    assert 0.92 * gigabytes * GIB <= find_gpu(name).gpu.memory_bytes <= 1.003 * gigabytes * GIB


@pytest.mark.parametrize(("name", "printed"), figures(PRINTED))
def test_what_processes_can_take_is_what_pytorch_prints_as_the_capacity(name, printed):
    assert find_gpu(name).gpu.usable_bytes / GIB == pytest.approx(printed, abs=0.15)


@pytest.mark.parametrize(("name", "gigabytes"), figures(LINKS))
def test_links_are_one_direction_of_what_vendors_print(name, gigabytes):
    assert find_gpu(name).link.bytes_per_second == gigabytes * 1e9


@pytest.mark.parametrize("name", ["T4", "V100-16GB", "RTX-2080-Ti", "Titan-RTX", "Quadro-RTX-8000"])
def test_gpus_before_ampere_have_no_units_for_bfloat16(name):
    assert "bfloat16" not in find_gpu(name).gpu.dense_flops


@pytest.mark.parametrize("name", ["RTX-3090", "RTX-4090", "RTX-5090", "L40S", "A10G", "RTX-6000-Ada", "H100-PCIe"])
def test_cards_without_nvlink_talk_over_pci_express(name):
    assert find_gpu(name).link.name.startswith("pcie")


def unsourced(table, path=""):
    """Places of numbers that stand in no table with a source."""
    if table.get("source"):
        return
    for key, value in table.items():
        if isinstance(value, dict):
            yield from unsourced(value, f"{path}.{key}")
        elif isinstance(value, int | float | list):
            yield f"{path}.{key}"


@pytest.mark.parametrize("name", ["gpus.toml", "prices.toml", "instances.toml"])
def test_every_number_of_the_catalogue_has_a_source(name):
    data = tomllib.loads((resources.files("shardwise.catalog") / name).read_text(encoding="utf-8"))
    assert list(unsourced(data)) == []
