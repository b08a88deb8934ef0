"""Sizes that hardware is rented in, and lists of alternatives."""

from __future__ import annotations

import pytest

from shardwise.catalog.gpus import find_gpu, known_gpus, parse_hardware
from shardwise.catalog.offers import alternatives, catalogue_sizes, every_size, is_open, rented_sizes
from shardwise.errors import HardwareError
from shardwise.spec.job import Job
from shardwise.spec.request import Override, request_of_flags


@pytest.mark.parametrize(
    ("gpu", "names"),
    [
        ("H100-SXM", ["1x H100-SXM", "2x H100-SXM", "4x H100-SXM", "8x H100-SXM", "2 x 8x H100-SXM"]),
        ("GH200", ["1x GH200", "2 x 1x GH200", "4 x 1x GH200", "8 x 1x GH200", "16 x 1x GH200"]),
    ],
)
def test_hardware_is_rented_in_parts_of_a_node_and_then_in_nodes(gpu: str, names: list[str]) -> None:
    sizes = rented_sizes(find_gpu(gpu), most=16)
    assert [size.name for size in sizes] == names
    assert all((size.network is None) == (size.num_nodes == 1) for size in sizes)
    assert all(parse_hardware(size.name) == size for size in sizes)


def test_every_number_of_a_node_and_of_whole_nodes_is_a_size() -> None:
    sizes = [size.name for size in every_size(parse_hardware("2 x 3x L4"), most=10)]
    assert sizes == ["1x L4", "2x L4", "3x L4", "2 x 3x L4", "3 x 3x L4"]
    assert [size.num_gpus for size in every_size(parse_hardware("H100-SXM"), most=24)] == [*range(1, 9), 16, 24]


def test_every_gpu_of_the_catalogue_is_offered_from_one_on() -> None:
    sizes = catalogue_sizes(most=32)
    assert {kind[0].gpu.name for kind in sizes} == set(known_gpus())
    assert all(kind[0].num_gpus == 1 and kind[-1].num_gpus <= 32 for kind in sizes)


def test_a_list_in_a_job_is_what_is_written_with_commas() -> None:
    job = Job.model_validate({"model": "m", "hardware": ["4x A100-80GB", "8x L40S"]})
    assert job.hardware == "4x A100-80GB, 8x L40S"
    assert Job.model_validate(job.to_json()) == job
    assert [cluster.num_gpus for cluster in alternatives(job.hardware)] == [4, 8]


@pytest.mark.parametrize("written", ["[4x A100-80GB, 8x L40S]", " [ 4x A100-80GB, 8x L40S ] "])
def test_a_list_may_have_its_brackets_as_text_too(written: str) -> None:
    assert Job.model_validate({"model": "m", "hardware": written}).hardware == "4x A100-80GB, 8x L40S"
    flag = Override.of_flag("--hardware", key="hardware", value=written)
    assert request_of_flags(["model=m", flag]).job.hardware == "4x A100-80GB, 8x L40S"
    assert Job.model_validate({"model": "m", "hardware": "[cpu:2]"}).hardware == "cpu:2"


def test_what_is_open_is_refused_where_one_hardware_is_needed() -> None:
    assert is_open(" Any ")
    assert not is_open("4x A100-80GB")
    with pytest.raises(HardwareError, match="leaves it open, which only `plan` answers; leave hardware out"):
        parse_hardware("any")
    with pytest.raises(HardwareError, match="leaves it open"):
        parse_hardware("4x A100-80GB, 8x L40S")
    with pytest.raises(HardwareError, match="nothing stands beside it in a list; write any alone"):
        alternatives("Any, 4x A100-80GB")
    with pytest.raises(HardwareError, match="A900"):
        alternatives("4x A900, 8x L40S")
