"""Hardware as users and drivers write it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.catalog.gpus import find_gpu, known_gpus, parse_hardware
from shardwise.errors import HardwareError
from shardwise.units import GIB


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("4x RTX-6000-Ada", "4x RTX-6000-Ada"),
        ("4 x rtx 6000 ada", "4x RTX-6000-Ada"),
        ("128 x 8x H100-SXM", "128 x 8x H100-SXM"),
        ("2x8xH100", "2 x 8x H100-SXM"),
        ("H200", "1x H200"),
        ("2× NVIDIA GeForce RTX 4090", "2x RTX-4090"),
        ("cpu:4", "cpu:4"),
        ("cpu", "cpu:1"),
    ],
)
def test_hardware_is_read_whatever_its_case_spaces_and_hyphens(text, name):
    cluster = parse_hardware(text)
    assert cluster.name == name
    assert parse_hardware(cluster.name) == cluster or cluster.gpu.kind == "cpu"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("4x RTX-4095", "RTX-4090"),
        ("H100-PCI", "H100-PCIe"),
        ("0x H100", "at least 1"),
        ("8x", "expected"),
        ("4", "expected"),
        ("1x 4090", "nearest: RTX-4090"),
        ("4090", "nearest: RTX-4090"),
        ("", "expected"),
        ("cpu:5000", "1024"),
        ("9999999 x 8x H100", "can be planned"),
        ("cpu:0", "at least 1"),
        ("2x3x4x H100", "expected"),
    ],
)
def test_other_hardware_is_a_sentence(text, word):
    with pytest.raises(HardwareError, match=re.escape(word)):
        parse_hardware(text)


@given(st.text(alphabet="0128x×* :-_cpuHART", max_size=20))
def test_any_text_gives_a_cluster_or_a_sentence(text):
    try:
        parse_hardware(text)
    except HardwareError as error:
        assert "hardware" in str(error)


DRIVER_NAMES = """
NVIDIA H200 = H200; NVIDIA H100 80GB HBM3 = H100-SXM; NVIDIA H100 PCIe = H100-PCIe; NVIDIA A100-SXM4-80GB = A100-80GB;
NVIDIA A100 80GB PCIe = A100-PCIe-80GB; NVIDIA A100-SXM4-40GB = A100-40GB; NVIDIA GeForce RTX 4090 = RTX-4090;
NVIDIA RTX 6000 Ada Generation = RTX-6000-Ada; NVIDIA RTX A6000 = RTX-A6000; NVIDIA L40S = L40S; NVIDIA A10G = A10G;
NVIDIA GB200 = GB200; NVIDIA GH200 480GB = GH200; NVIDIA A30 = A30; AMD Instinct MI325X = MI325X; Tesla T4 = T4;
NVIDIA GeForce RTX 4070 Ti SUPER = RTX-4070-Ti-Super; NVIDIA GeForce RTX 5060 Ti = RTX-5060-Ti-16GB;
NVIDIA GeForce RTX 2080 Ti = RTX-2080-Ti; Tesla V100-SXM2-16GB = V100-16GB
"""


@pytest.mark.parametrize(("driver", "name"), [pair.strip().split(" = ") for pair in DRIVER_NAMES.split(";")])
def test_a_driver_name_finds_its_entry(driver, name):
    assert find_gpu(driver).gpu.name == name


def test_no_two_of_many_entries_share_a_name():
    assert len(known_gpus()) >= 60
    names = [name for known in known_gpus().values() for name in known.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("known", known_gpus().values(), ids=lambda known: known.gpu.name)
def test_every_entry_is_plausible_and_has_a_source(known):
    gpu = known.gpu
    assert re.search(r"(NVIDIA|AMD).*(data sheet|white paper|product page)", known.source)
    assert 7.9 * GIB <= gpu.memory_bytes <= 300 * GIB
    assert 8e12 <= gpu.dense_flops["float32"] <= 200e12
    assert gpu.dense_flops["float32"] < gpu.dense_flops["float16"] <= 2600e12
    assert gpu.dense_flops.get("bfloat16", gpu.dense_flops["float16"]) == gpu.dense_flops["float16"]
    assert 250e9 <= gpu.memory_bytes_per_second <= 8e12
    assert known.link.bytes_per_second >= 15e9
    assert known.node_gpus in (1, 4, 8, 72)
    assert gpu.usd_per_hour is None or 0 < gpu.usd_per_hour[0] <= gpu.usd_per_hour[1]
