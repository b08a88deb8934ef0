"""A target never gets another layout than the plan's: what its files cannot say is refused in a sentence."""

from __future__ import annotations

import pytest

from shardwise.errors import UnsupportedError
from shardwise.interop.chosen import Chosen
from shardwise.interop.targets import TARGETS
from shardwise.spec.plan.forecast import Plan
from tests.unit.interop.conftest import refusal

TRAINERS = ("accelerate", "deepspeed", "trl", "torchtitan")
AGAIN = "plan again with --set "


@pytest.mark.parametrize(
    ("to", "layout", "said"),
    [
        ("accelerate", {"tp": 2}, "layout tp is not exported to accelerate: Accelerate slices no model itself"),
        ("accelerate", {"pp": 2}, "layout pp is not exported to accelerate: Accelerate cuts no stages for training"),
        ("accelerate", {"dp_shard": 2, "tp": 2}, "layout fsdp x tp is not exported to accelerate: "),
        (
            "deepspeed",
            {"tp": 2},
            "layout tp is not exported to deepspeed: its tensor parallelism slices other matrices",
        ),
        ("deepspeed", {"pp": 2}, "layout pp is not exported to deepspeed: its pipelines take models rewritten"),
        ("deepspeed", {"dp_replicate": 2, "dp_shard": 2}, "layout hsdp is not exported to deepspeed: MiCS is "),
        ("trl", {"pp": 2, "schedule": "sequential"}, "layout mp is not exported to trl: its Trainer cuts no stages"),
        ("trl", {"dp_replicate": 2, "dp_shard": 2}, "layout hsdp is not exported to trl: no test has run it there"),
        (
            "torchtitan",
            {"pp": 2, "schedule": "sequential"},
            "layout mp is not exported to torchtitan: it has no schedule",
        ),
    ],
)
def test_a_layout_without_counterpart_is_refused(make, to, layout, said) -> None:
    found = refusal(make(layout=layout, hardware="4x L4"), to)
    assert found.startswith(f"plan.json: {said}")
    assert f"{AGAIN}layout=fsdp, or one of " in found


@pytest.mark.parametrize("to", ["accelerate", "trl", "torchtitan"])
def test_zero1_is_refused_where_states_are_not_sharded_alone(make, to) -> None:
    zero1 = {"dp_shard": 2, "zero_stage": 1, "reshard_after_forward": False}
    assert f"layout zero1 is not exported to {to}: " in refusal(make(layout=zero1), to)


@pytest.mark.parametrize("to", TRAINERS)
def test_what_no_other_trainer_has_is_refused_with_every_reason_at_once(make, to) -> None:
    chosen = make(
        job={"method": "qlora"},
        optimizer="adafactor",
        offload="none",
        layout={"dp_shard": 2, "min_num_params": 10**9},
        micro_batch_size=3,
    )
    said = refusal(chosen, to).splitlines()
    assert [line.removeprefix("plan.json: ").split(" is ")[0] for line in said] == [
        "method qlora",
        "train.optimizer adafactor",
        "layout.min_num_params",
        "a global batch of 8",
    ]
    assert said[2].endswith("where each block is gathered alone; leave it out")
    assert "no product of micro-batch 3 and 2 ranks" in said[3]
    assert said[3].endswith("plan again with another train.global_batch_size or train.micro_batch_size")
    assert f"layout.prefetch is not exported to {to}" in refusal(make(layout={"dp_shard": 2, "prefetch": 2}), to)


@pytest.mark.parametrize(
    ("to", "how", "said"),
    [
        ("accelerate", {"gradient_checkpointing": "selective"}, "computes whole blocks again; " + AGAIN),
        (
            "accelerate",
            {"offload": "optimizer"},
            "train.offload optimizer is not exported to accelerate: FSDP2 offloads",
        ),
        (
            "deepspeed",
            {"precision": "bf16"},
            "train.precision bf16 is not exported to deepspeed: it keeps float32 masters",
        ),
        ("deepspeed", {"gradient_checkpointing": "selective"}, "it has no counterpart"),
        (
            "torchtitan",
            {"precision": "fp16"},
            "train.precision fp16 is not exported to torchtitan: it has no loss scaling",
        ),
        ("torchtitan", {"optimizer": "sgd"}, "train.optimizer sgd is not exported to torchtitan: it has AdamW"),
    ],
)
def test_other_choices_without_counterpart_are_refused(make, to, how, said) -> None:
    assert said in refusal(make(**how), to)


def test_offloading_what_is_not_sharded_is_refused(make) -> None:
    for to in ("accelerate", "deepspeed"):
        said = refusal(make(layout={"dp_replicate": 2}, offload="parameters"), to)
        assert said.endswith(f"{to} offloads what it shards, and ddp shards nothing; plan again with --set layout=fsdp")
    zero2 = {"dp_shard": 2, "zero_stage": 2, "reshard_after_forward": False}
    said = refusal(make(layout=zero2, offload="parameters"), "deepspeed")
    assert said.endswith("offloads weights in stage 3 only, and zero2 is stage 2; plan again with --set layout=fsdp")


def test_processors_are_refused_where_only_gpus_are_spread_over(make) -> None:
    said = refusal(make(hardware="cpu:2"), "accelerate")
    assert said == "plan.json: accelerate spreads fsdp over GPUs only, and hardware is cpu:2"
    assert "trl spreads fsdp over GPUs only, and hardware is cpu:2" in refusal(make(hardware="cpu:2"), "trl")
    assert "torchtitan spreads fsdp over GPUs only" in refusal(make(hardware="cpu:2"), "torchtitan")
    assert "SkyPilot has no name for cpu that is known here; it has A10, " in refusal(
        make(hardware="cpu:2"), "skypilot"
    )
    assert "no name for RTX-4090 that" in refusal(make(hardware="2x RTX-4090"), "skypilot")


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"data": {"path": ["a.jsonl", "b.jsonl"]}}, "data.path is exported to trl where it is one source of weight 1"),
        (
            {"data": {"path": "a.txt"}},
            "data.path names a.txt, which is not exported to trl; name a file (.jsonl, .json",
        ),
        ({"data": {"packing": True}}, "data.packing is not exported to trl, which needs flash attention"),
        ({"data": {"train_on": "completion"}}, "data.train_on: completion is not exported to trl"),
        ({"train": {"disable_dropout": True}}, "train.disable_dropout is not exported to trl"),
        ({"train": {"optimizer": "sgd", "momentum": 0.9}}, "train.momentum is not exported to trl, whose sgd has none"),
    ],
)
def test_what_the_trl_script_cannot_say_is_refused(make, job, said) -> None:
    assert said in refusal(make(job=job), "trl")


def test_adapters_in_bfloat16_alone_are_refused_for_trl(make) -> None:
    said = refusal(make(job={"method": "lora"}, precision="bf16"), "trl")
    assert said.endswith("not exported to trl for adapters, which PEFT keeps in float32; write mixed")


@pytest.mark.parametrize(
    ("job", "layout", "said"),
    [
        ({"model": "tinyllama-1.1b"}, {"dp_shard": 2}, "torchtitan has no configuration of TinyLlama/"),
        (
            {"train": {"max_steps": None}},
            {"dp_shard": 2},
            "torchtitan counts steps and no epochs; write train.max_steps",
        ),
        ({}, {"pp": 2, "schedule": "zero_bubble"}, "layout.schedule zero_bubble is not exported to torchtitan"),
    ],
)
def test_what_torchtitan_has_not_is_refused(make, job, layout, said) -> None:
    assert said in refusal(make(job=job, layout=layout), "torchtitan")


def test_a_plan_that_chose_nothing_or_parts_of_several_nodes_is_refused(make) -> None:
    empty = Plan(job={}, hardware={}, model={}, candidates=(), chosen=None, rejected=())
    with pytest.raises(UnsupportedError, match=r"^p.json: nothing fits, and so there is nothing to export"):
        Chosen.of(empty, path="p.json")


def test_every_target_has_a_case_that_works(make) -> None:
    for to, target in TARGETS.items():
        made = target(make())
        assert made.files, to
        assert made.run, to
