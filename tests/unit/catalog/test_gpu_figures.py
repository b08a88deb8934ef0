"""Figures of GPUs, held against rules of their architectures and against the traps of data sheets."""

import re
import tomllib
from importlib import resources

import pytest

from shardwise.catalog.gpus import find_gpu, known_gpus
from shardwise.units import GIB, MIB

DATA = tomllib.loads((resources.files("shardwise.catalog") / "gpus.toml").read_text(encoding="utf-8"))

#: What data sheets print in large type, with sparsity -> half of it is what dense products can reach.
PRINTED_WITH_SPARSITY = {
    "L4": 242,
    "L40": 362,
    "L40S": 724.1,  # printed as 733, beside 362.05 without
    "A10": 250,
    "A10G": 140,
    "A30": 330,
    "A40": 299.4,
    "A100-80GB": 624,
    "A100-PCIe-40GB": 624,
    "H100-PCIe": 1513,
    "H100-SXM": 1979,
    "H100-NVL": 1671,
    "H200": 1979,
    "H20": 296,
    "GH200": 1979,
    "B200": 4500,
    "GB200": 5000,
    "MI300X": 2614.9,
    "MI355X": 5033,
    "RTX-6000-Ada": 728.5,
    "RTX-A6000": 309.7,
    "RTX-A5000": 222.2,
    "RTX-4090": 330.3,
    "RTX-5090": 419,
    "RTX-3090": 142,
}
#: Gigabytes in the name of the product or on its page.
SOLD_AS = {
    "A10": 24,
    "A10G": 24,
    "A30": 24,
    "A40": 48,
    "L4": 24,
    "L40": 48,
    "L40S": 48,
    "T4": 16,
    "A100-40GB": 40,
    "A100-80GB": 80,
    "H100-SXM": 80,
    "H100-PCIe": 80,
    "H100-NVL": 94,
    "H200": 141,
    "H20": 96,
    "GH200": 96,
    "RTX-3060": 12,
    "RTX-3090": 24,
    "RTX-4090": 24,
    "RTX-5090": 32,
    "RTX-A6000": 48,
    "RTX-6000-Ada": 48,
    "RTX-4500-Ada": 24,
    "RTX-PRO-6000-Blackwell": 96,
    "RTX-PRO-6000-Blackwell-Server": 96,
    "Titan-RTX": 24,
    "MI250X": 64,
    "MI300X": 192,
    "MI325X": 256,
    "MI355X": 288,
}
#: 16-bit products with float32 sums, over float32 outside the tensor cores: half rate on GeForce, full on the others.
GEFORCE, WORKSTATION = 2.0, 4.0


@pytest.mark.parametrize(("name", "printed"), PRINTED_WITH_SPARSITY.items())
def test_peaks_are_dense_and_not_what_is_printed_with_sparsity(name, printed):
    assert find_gpu(name).gpu.dense_flops["bfloat16"] == pytest.approx(printed / 2 * 1e12, rel=0.01)


@pytest.mark.parametrize(("name", "gigabytes"), SOLD_AS.items())
def test_memory_is_what_the_driver_reports_of_what_is_sold(name, gigabytes):
    # HBM is sold in thousands of millions of bytes, and a part is kept for error correction; GDDR in powers of two.
    assert 0.92 * gigabytes * GIB <= find_gpu(name).gpu.memory_bytes <= 1.003 * gigabytes * GIB


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("A100-80GB", 79.25),
        ("A800-80GB", 79.33),
        ("A100-40GB", 39.5),
        ("A30", 23.53),
        ("RTX-4090", 23.64),
        ("RTX-5090", 31.37),
        ("RTX-A4000", 15.61),
    ],
)
def test_what_processes_can_take_is_what_pytorch_prints_as_the_capacity(name, printed):
    """Of messages of too little memory that others published; see `_RESERVED_BYTES`."""
    assert find_gpu(name).gpu.usable_bytes / GIB == pytest.approx(printed, abs=0.15)


def test_nothing_is_known_to_be_kept_of_amd_s_memory():
    gpu = find_gpu("MI300X").gpu
    assert gpu.usable_bytes == gpu.memory_bytes


@pytest.mark.parametrize("name", [name for name in DATA["gpus"] if re.match(r"RTX-[345]0[5-9]0", name)])
def test_geforce_cards_sum_in_float32_at_half_rate(name):
    peaks = find_gpu(name).gpu.dense_flops
    assert peaks["bfloat16"] / peaks["float32"] == pytest.approx(GEFORCE, rel=0.01)


@pytest.mark.parametrize("name", [name for name in DATA["gpus"] if re.match(r"RTX-(A|\d000|4500|PRO)", name)])
def test_workstation_cards_sum_in_float32_at_full_rate(name):
    peaks = find_gpu(name).gpu.dense_flops
    assert peaks["bfloat16"] / peaks["float32"] == pytest.approx(WORKSTATION, rel=0.02)


@pytest.mark.parametrize("name", ["T4", "V100-16GB", "RTX-2080-Ti", "Titan-RTX", "Quadro-RTX-8000"])
def test_gpus_before_ampere_have_no_units_for_bfloat16(name):
    assert "bfloat16" not in find_gpu(name).gpu.dense_flops


def test_links_are_one_direction_of_what_vendors_print():
    assert find_gpu("A100").link.bytes_per_second == 600e9 / 2
    assert find_gpu("H100").link.bytes_per_second == 900e9 / 2
    assert find_gpu("H800").link.bytes_per_second == 400e9 / 2
    assert find_gpu("B200").link.bytes_per_second == 1800e9 / 2
    assert find_gpu("RTX-4090").link.bytes_per_second == 31.5e9


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


def test_a_number_without_a_source_is_found():
    data = {"gpus": {"A": {"memory_mib": 1, "source": "NVIDIA A data sheet"}, "B": {"memory_mib": 2, "source": ""}}}
    assert list(unsourced(data)) == [".gpus.B.memory_mib"]
    assert list(unsourced({"list": {"usd_per_hour": {"A": [1.0, 2.0]}}})) == [".list.usd_per_hour.A"]


def test_every_link_and_network_carries_something():
    for table in ("links", "networks"):
        assert all(row["gigabytes_per_second"] > 0 and row["latency_us"] > 0 for row in DATA[table].values())


def test_what_stands_under_a_gpu_is_known():
    figures = {"memory_mib", "float32_tflops", "bfloat16_tflops", "float16_tflops", "gigabytes_per_second", "node"}
    words = {"driver", "aliases", "link", "network", "source", "url", "memory_is_nominal"}
    assert {key for row in DATA["gpus"].values() for key in row} <= figures | words


def test_links_of_amd_are_shared_by_the_two_dies_of_a_card():
    assert find_gpu("MI250X").link.bytes_per_second == 8 * 100e9 / 2 / 2
    assert find_gpu("MI250").link.bytes_per_second == 6 * 100e9 / 2 / 2


@pytest.mark.parametrize("name", ["RTX-3090", "RTX-4090", "RTX-5090", "L40S", "A10G", "RTX-6000-Ada", "H100-PCIe"])
def test_cards_without_nvlink_talk_over_pci_express(name):
    assert find_gpu(name).link.name.startswith("pcie")


def test_editions_of_one_card_have_their_own_figures():
    """The server's memory is slower, and the driver names each; the name that all share is the workstation's."""
    server, workstation = (
        find_gpu(f"NVIDIA RTX PRO 6000 Blackwell {name} Edition") for name in ("Server", "Workstation")
    )
    assert (server.gpu.name, workstation.gpu.name) == ("RTX-PRO-6000-Blackwell-Server", "RTX-PRO-6000-Blackwell")
    assert (server.gpu.memory_bytes_per_second, workstation.gpu.memory_bytes_per_second) == (1597e9, 1792e9)
    assert (server.gpu.dense_flops["float32"], workstation.gpu.dense_flops["float32"]) == (120e12, 125e12)
    assert find_gpu("RTX PRO 6000 Blackwell Server Edition") == server
    assert find_gpu("RTX PRO 6000") == workstation


def test_a_dearer_generation_of_one_class_is_not_slower_in_any_figure():
    for older, newer in (("A100-80GB", "H100-SXM"), ("H100-SXM", "H200"), ("H200", "B200"), ("RTX-3090", "RTX-4090")):
        old, new = find_gpu(older).gpu, find_gpu(newer).gpu
        assert old.dense_flops["bfloat16"] <= new.dense_flops["bfloat16"]
        assert old.memory_bytes_per_second <= new.memory_bytes_per_second
        assert old.memory_bytes <= new.memory_bytes + 512 * MIB


def test_a_source_names_a_document_of_the_vendor():
    for known in known_gpus().values():
        assert re.search(r"NVIDIA|AMD", known.source)
        assert re.search(r"data sheet|white paper|product page", known.source)
