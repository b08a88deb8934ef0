"""Hardware as users and drivers write it, and GPUs' figures against data sheets' traps."""

import re
import tomllib
from importlib import resources

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
        ("2× NVIDIA GeForce RTX 4090", "2x RTX-4090"),
        ("1x 4090 24GB", "1x RTX-4090"),
        ("8 H100", "8x H100-SXM"),
        ("3090 x2", "2x RTX-3090"),
        ("4 nodes x 8 B200", "4 x 8x B200"),
        ("2x 6000 Ada", "2x RTX-6000-Ada"),
        ("2 x 8x H100-SXM @ 100 Gb/s", "2 x 8x H100-SXM @ 100 Gb/s"),
        ("2 x 8x H100-SXM @ 50GB/s", "2 x 8x H100-SXM @ 400 Gb/s"),
        ("1 x 16x H100-SXM", "16x H100-SXM"),
        ("16x A100-40GB", "16x A100-40GB"),
        ("72x GB300", "72x GB300"),
        ("cpu:4", "cpu:4"),
        ("cpu", "cpu:1"),
    ],
)
def test_hardware_is_read_whatever_its_case_spaces_and_hyphens(text, name):
    cluster = parse_hardware(text)
    assert cluster.name == name
    assert text.startswith("1 x") or cluster.gpu.kind == "cpu" or parse_hardware(cluster.name) == cluster


def test_the_link_between_machines_is_stated_or_said_to_be_assumed():
    stated, assumed = parse_hardware("4 x 8x H100-SXM @ 100 Gb/s"), parse_hardware("4 x 8x H100-SXM")
    assert (stated.network.bytes_per_second, stated.network.shared) == (12.5e9, True)
    assert parse_hardware("8x MI300X").notes == ("AMD GPUs are planned for, and nothing was tried on ROCm",)
    assert stated.notes == () and parse_hardware("8x H100-SXM").notes == ()
    said = "400 Gb/s for each GPU are assumed between machines; state what a machine has behind hardware, such as @ 100"
    assert assumed.notes == (f"{said} Gb/s",)


#: GiB that PyTorch printed at the least as the capacity, in public logs.
LOWEST = """
A100-80GB 79.14  A100-40GB 39.38  A40 44.34  L40S 44.39  L4 21.96  A10G 21.96  T4 14.56  RTX-3090 23.56  RTX-4090 23.51
RTX-5090 31.34  RTX-A6000 47.40  H100-SXM 79.18  RTX-PRO-6000-Blackwell 94.96  B200 178.35  MI300X 191.69
MI325X 255.69  MI355X 287.98  MI250X 63.98  GB10 119.2
"""


def test_no_more_is_usable_than_pytorch_was_seen_to_print():
    for name, printed in figures(LOWEST):
        assert printed - 0.2 <= find_gpu(name).gpu.usable_bytes / GIB <= printed


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("4x RTX-4095", "RTX-4090"),
        ("H100-PCI", "H100-PCIe"),
        ("0x H100", "at least 1"),
        ("8x", "expected"),
        ("4", "expected"),
        ("1x 2080", "nearest: RTX-2080-Ti"),
        ("4x 6000", "nearest: "),
        ("2 x 8x H100-SXM @ fast", "expected"),
        ("8x H100-SXM @ 100 Gb/s", "which is one machine, and 100 Gb/s is a link between machines"),
        ("2 x 8x H100-SXM @ 0 Gb/s", "above 0 and at most 100000 Gb/s"),
        ("16x H100-SXM", "write '2 x 8x H100-SXM' for 2 machines, or '1 x 16x H100-SXM' if one machine is what you"),
        ("144x GB200", "'2 x 72x GB200' for 2 machines"),
        ("", "expected"),
        ("cpu:5000", "1024"),
        ("9999999 x 8x H100", "can be planned"),
        ("cpu:0", "at least 1"),
        ("M3-Max", "nothing is planned for or trained on Apple's GPUs; name NVIDIA's, such as '1x RTX-4090'"),
        ("MacBook Pro", "nothing is planned for or trained on Apple's GPUs"),
        ("M40", "is not in the catalogue; nearest: "),
        ("2x 24 GB", "is memory and not the name of a GPU; 24 GB have Titan-RTX, RTX-3090, "),
        ("7GB", "is memory and not the name of a GPU; name one, such as '1x RTX-4090'"),
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


def test_no_two_entries_share_a_name_and_each_has_the_units_and_links_of_its_kind() -> None:
    assert len(known_gpus()) >= 60
    names = [name for known in known_gpus().values() for name in known.names]
    assert len(names) == len(set(names))
    for name in ("T4", "V100-16GB", "RTX-2080-Ti", "Titan-RTX", "Quadro-RTX-8000"):
        assert "bfloat16" not in find_gpu(name).gpu.dense_flops
    for name in ("RTX-3090", "RTX-4090", "RTX-5090", "L40S", "A10G", "RTX-6000-Ada", "H100-PCIe"):
        assert find_gpu(name).link.name.startswith("pcie")


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


#: Tera-operations of data sheets, with sparsity. The L40S is printed as 733, beside 362.05 without.
SPARSE = """
L4 242  L40 362  L40S 724.1  A10 250  A10G 140  A30 330  A40 299.4  A100-80GB 624  A100-PCIe-40GB 624  H100-PCIe 1513
H100-SXM 1979  H100-NVL 1671  H200 1979  H20 296  GH200 1979  B200 4500  GB200 5000  MI300X 2614.9  MI355X 5033
B300 4500  GB300 5000  L20 239
RTX-6000-Ada 728.5  RTX-A6000 309.7  RTX-A5000 222.2  RTX-4090 330.3  RTX-5090 419  RTX-3090 142
"""
#: Gigabytes in the name of the product or on its page.
SOLD_AS = """
A10 24  A10G 24  A30 24  A40 48  L4 24  L40 48  L40S 48  T4 16  A100-40GB 40  A100-80GB 80  H100-SXM 80  H100-PCIe 80
H100-NVL 94  H100-96GB 96  H200 141  H20 96  GH200 96  RTX-3060 12  RTX-3090 24  RTX-4090 24  RTX-5090 32  RTX-A6000 48
RTX-6000-Ada 48  RTX-4500-Ada 24  RTX-PRO-6000-Blackwell 96  RTX-PRO-6000-Blackwell-Server 96  Titan-RTX 24
MI250X 64  MI300X 192  MI325X 256  MI355X 288  B300 288  GB300 288  GH200-144GB 144  L20 48  A100-SXM4-64GB 64
RTX-PRO-5000-Blackwell 48  RTX-PRO-4500-Blackwell 32  RTX-PRO-6000-Max-Q 96
"""
#: GiB that PyTorch prints as the capacity, of messages of too little memory that others published.
PRINTED = "A100-80GB 79.25  A800-80GB 79.33  A100-40GB 39.5  A30 23.53  RTX-4090 23.64  RTX-5090 31.37  RTX-A4000 15.61"
#: GB/s in one direction: half of what vendors print; the two dies of AMD's cards share them.
LINKS = "A100 300  H100 450  H800 200  B200 900  RTX-4090 31.5  MI250X 200  MI250 150"


def figures(text):
    words = text.split()
    return list(zip(words[::2], map(float, words[1::2]), strict=True))


@pytest.mark.parametrize(("name", "printed"), figures(SPARSE))
def test_peaks_are_dense_and_not_what_is_printed_with_sparsity(name, printed):
    assert find_gpu(name).gpu.dense_flops["bfloat16"] == pytest.approx(printed / 2 * 1e12, rel=0.01)


@pytest.mark.parametrize(("name", "gigabytes"), figures(SOLD_AS))
def test_memory_is_what_the_driver_reports_of_what_is_sold(name, gigabytes):
    # HBM is sold in powers of ten, some kept for error correction; GDDR in powers of two.
    assert 0.92 * gigabytes * GIB <= find_gpu(name).gpu.memory_bytes <= 1.003 * gigabytes * GIB
    assert find_gpu(f"{name} {gigabytes:g}GB").gpu.name == name


@pytest.mark.parametrize(("name", "printed"), figures(PRINTED))
def test_what_processes_can_take_is_what_pytorch_prints_as_the_capacity(name, printed):
    assert find_gpu(name).gpu.usable_bytes / GIB == pytest.approx(printed, abs=0.15)


@pytest.mark.parametrize(("name", "gigabytes"), figures(LINKS))
def test_links_are_one_direction_of_what_vendors_print(name, gigabytes):
    assert find_gpu(name).link.bytes_per_second == gigabytes * 1e9


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
