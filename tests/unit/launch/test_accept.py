from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from shardwise.catalog import probe
from shardwise.catalog.gpus import parse_hardware
from shardwise.errors import HardwareError, InputError, UnsupportedError
from shardwise.launch.nodes.meeting import Nodes
from shardwise.launch.processes.torchrun import Place
from shardwise.launch.requirements import check_present, check_trainable, share_of_nodes, training_cluster
from shardwise.spec.job.file import job_from_data
from shardwise.spec.request import Request, read_request
from tests.refusals import must_refuse

GPU = probe.FoundGpu(index=0, uuid="u", name="NVIDIA H100 80GB HBM3", memory_bytes=80 * 10**9, driver="1")


def request(**keys: Any) -> Request:
    return read_request(job_from_data({"model": "m", "data": {"path": "d.jsonl"}, **keys}))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[probe.FoundGpu]]:
    """The GPUs that the driver says are here."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus: list[probe.FoundGpu] = []
    monkeypatch.setattr(probe, "visible_gpus", lambda: gpus)
    return gpus


@pytest.mark.parametrize(
    ("hardware", "here", "message"),
    [
        ("4x H100-SXM", 0, "hardware is 4x .*, and this machine has no GPU"),
        ("4x H100-SXM", 2, "this machine has 2x H100"),
        ("1x RTX-6000-Ada", 2, "hardware is 1x RTX-6000-Ada, and this machine has 2x H100"),
        ("2 x 8x H100-SXM", 8, "torchrun --nnodes 2 --nproc-per-node 8"),
    ],
)
def test_gpus_that_are_not_here_are_refused_and_what_is_here_is_named(hardware, here, message, machine) -> None:
    machine += [GPU] * here
    must_refuse(HardwareError, message, training_cluster, request(hardware=hardware), place=None)
    assert training_cluster(request(hardware="cpu:4"), place=None).gpu.kind == "cpu"


def test_memory_is_what_is_free_on_the_gpus_that_are_taken(machine) -> None:
    machine += [GPU, replace(GPU, index=1, free_bytes=20 * 10**9)]
    assert training_cluster(request(hardware="1x H100-SXM"), place=None).notes == ()
    for asked in (request(hardware="2x H100-SXM"), request()):
        cluster = training_cluster(asked, place=None)
        assert cluster.gpu.usable_bytes == 20 * 10**9
        assert cluster.notes[0].startswith("GPU 1: 55.")


def test_a_gpu_of_an_unknown_name_is_taken_for_what_the_job_names_if_it_has_the_memory(machine) -> None:
    machine += [replace(GPU, name="NVIDIA H100-X", memory_bytes=81000 * 1024**2)]
    cluster = training_cluster(request(hardware="1x H100-SXM"), place=None)
    assert cluster.name == "1x H100-SXM"
    assert cluster.gpu.memory_bytes == 81000 * 1024**2
    assert cluster.notes == (
        "hardware names H100-SXM, and the driver calls this GPU H100-X, which is not in the catalogue; it is taken for "
        "one by its 79.1 GiB, and times are those of H100-SXM",
    )
    with pytest.raises(HardwareError, match="hardware is 1x B200, and this machine has 1x H100-X"):
        training_cluster(request(hardware="1x B200"), place=None)
    assert training_cluster(request(hardware="1x H100-X"), place=None).name == "1x H100-X"
    with pytest.raises(HardwareError, match="hardware names the GPU 'H100-X', which is not in the catalogue"):
        training_cluster(request(hardware="2x H100-X"), place=None)
    assert training_cluster(request(), place=Place(rank=0, size=2, local_size=1, launch="x")).name == "2 x 1x H100-X"


@pytest.mark.parametrize("asked", [request(), request(hardware="2x H100-SXM")])
def test_ranks_that_each_see_one_gpu_are_as_many_gpus(asked, machine, monkeypatch) -> None:
    machine += [GPU]
    place = Place(rank=0, size=2, local_size=2, launch="x")
    must_refuse(HardwareError, r"machine (with|has) 1x H100-SXM", training_cluster, asked, place=place)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert training_cluster(asked, place=place).name == "2x H100-SXM"


def test_ranks_that_were_started_are_what_is_planned_for(machine) -> None:
    place = Place(rank=0, size=4, local_size=2, launch="x")
    assert training_cluster(request(), place=place).num_gpus == 4
    machine += [GPU, GPU]
    cluster = training_cluster(request(), place=place)
    assert (cluster.num_nodes, cluster.node.num_gpus) == (2, 2)
    with pytest.raises(HardwareError, match=r"cpu:3, 3 processes, and 4 were started"):
        training_cluster(request(hardware="cpu:3"), place=place)
    del machine[1]
    with pytest.raises(HardwareError, match=r"2 processes were started on a machine with 1x"):
        training_cluster(request(), place=place)


def test_machines_that_were_started_have_the_gpus_of_this_one_or_those_asked_for(machine) -> None:
    machine[:] = [GPU] * 3
    nodes = Nodes(count=2, rank=0, host="n0")
    asked = [request(), request(hardware="2 x 4x H100-SXM"), request(hardware="cpu:6")]
    found = [share_of_nodes(one, nodes) for one in asked]
    assert [(place.size, place.local_size) for place in found] == [(6, 3), (8, 4), (6, 3)]


@pytest.mark.parametrize(
    ("hardware", "local_size", "here", "name", "message"),
    [
        ("4x H100-SXM", 4, 0, GPU.name, "hardware is 4x H100-SXM, and this machine has no GPU"),
        ("4x H100-SXM", 4, 4, "NVIDIA A100-SXM4-80GB", "hardware is 4x H100-SXM, and this machine has 4x A100"),
        ("2 x 2x H100-SXM", 2, 1, GPU.name, "is 2 x 2x H100-SXM, 2 on each machine, and this machine has 1x H100"),
    ],
)
def test_ranks_that_were_started_are_on_the_named_hardware(hardware, local_size, here, name, message, machine) -> None:
    asked, place = request(hardware=hardware), Place(rank=0, size=4, local_size=local_size, launch="x")
    machine += [replace(GPU, name=name)] * here
    must_refuse(HardwareError, message, training_cluster, asked, place=place)
    machine[:] = [GPU] * local_size
    assert training_cluster(asked, place=place).name == hardware


CUT_AND_COMPILED = {"layout": {"pp": 2, "schedule": "zero_bubble"}, "train": {"compile": True}}


@pytest.mark.parametrize(
    ("keys", "processes", "message"),
    [
        ({"method": "qlora", "train": {"compile": True}}, 1, "compile is not trained with method qlora"),
        ({"layout": "hsdp"}, 5, "hsdp shards inside groups .* 5 processes in groups of 2 give no such product"),
        ({"layout": {"dp_shard": 4}}, 2, "layout needs 4 processes, and the hardware gives 2"),
        (CUT_AND_COMPILED, 2, "compile is not trained with schedule zero_bubble; use compile: false"),
        ({"data": {"num_rows": 5}}, 1, r"data\.path is missing"),
        ({"layout": "zero1", "train": {"offload": "all"}}, 2, "zero1 keeps them there; use offload: optimizer"),
    ],
)
def test_what_is_planned_but_not_trained_is_refused_at_its_place(keys, processes, message) -> None:
    with pytest.raises(InputError, match=message) as caught:
        check_trainable(request(**keys), cluster=parse_hardware(f"cpu:{processes}"))
    assert str(caught.value).startswith("the job:")


def test_what_is_trained_is_accepted_and_every_reason_against_the_rest_is_given_at_once() -> None:
    for layout in ("auto", "ddp", "zero1", "fsdp", "zero2", {"dp_shard": 2}):
        check_trainable(request(layout=layout), cluster=parse_hardware("cpu:2"))
    check_trainable(request(layout="hsdp"), cluster=parse_hardware("3 x 3x H100-SXM"))
    with pytest.raises(UnsupportedError) as caught:
        train = {"offload": "optimizer", "optimizer": "adafactor", "compile": True}
        check_trainable(request(method="qlora", train=train), cluster=parse_hardware("cpu:1"))
    assert len(caught.value.problems) == 2


def test_what_is_not_here_is_named_at_its_place_all_at_once(tmp_path) -> None:
    text = (
        "model: m\ndata:\n  path: [no.jsonl, org/on-the-hub]\n  eval_path: /no/where\n  chat_template: no.jinja\n"
        "train:\n  report_to: mlflow\n  attn_implementation: flash_attention_3\n"
    )
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        check_present(read_request(file), parse_hardware("2x H100-SXM"))
    assert [str(problem).removeprefix(f"{file}:") for problem in caught.value.problems] == [
        "3: data.path names no.jsonl, which does not exist",
        "4: data.eval_path names /no/where, which does not exist",
        "5: data.chat_template names no.jinja, which is no file; expected a Jinja template",
        "7: train.report_to names mlflow, which is not installed; pip install mlflow-skinny",
        "8: train.attn_implementation names flash_attention_3, which is not installed; use sdpa",
    ]


@pytest.mark.parametrize(
    ("attention", "hardware", "message"),
    [
        ("flash_attention_2", "1x T4", "is flash_attention_2, which needs a GPU "),
        ("flash_attention_2", "cpu:2", "is flash_attention_2, which is not trained on processors; use sdpa or eager"),
        ("flex_attention", "cpu:2", "is flex_attention, which is not trained on processors; use sdpa or eager"),
    ],
)
def test_a_kernel_that_the_hardware_has_not_is_refused(attention, hardware, message) -> None:
    cluster, rows = parse_hardware(hardware), {"path": "org/rows"}
    with pytest.raises(InputError, match=f"train.attn_implementation {message}"):
        check_present(request(data=rows, train={"attn_implementation": attention}), cluster)
    check_present(request(data=rows, train={"attn_implementation": "eager"}), cluster)


@pytest.mark.parametrize(
    ("keys", "what"),
    [({"method": "qlora"}, "method qlora"), ({"train": {"optimizer": "adamw_8bit"}}, "optimizer adamw_8bit")],
)
def test_what_needs_bitsandbytes_is_refused_without_it(keys, what, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("shardwise.launch.requirements.find_spec", lambda _name: None)
    model, rows = tmp_path / "model", tmp_path / "rows.jsonl"
    model.mkdir()
    rows.write_text("{}")
    asked = request(model=str(model), data={"path": str(rows)}, **keys)
    with pytest.raises(InputError, match=f"{what} needs bitsandbytes, which is not installed; run: pip install"):
        check_present(asked, parse_hardware("cpu:1"))
