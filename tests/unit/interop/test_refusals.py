"""A target never gets another layout than the plan's: what its files cannot say is refused."""

from typing import Any

import pytest

from shardwise.errors import UnsupportedError
from shardwise.interop.chosen import Chosen
from shardwise.interop.targets import TARGETS
from shardwise.spec.plan.forecast import Plan
from tests.unit.interop.conftest import make, refusal

TRAINERS = ("accelerate", "deepspeed", "trl", "torchtitan", "axolotl", "llama-factory", "ms-swift")
MP, HSDP, SGD = {"pp": 2, "schedule": "sequential"}, {"dp_replicate": 2, "dp_shard": 2}, {"optimizer": "sgd"}

#: Target, layout, and words of the sentence, which names the layouts that are exported.
LAYOUTS: list[tuple[str, dict[str, Any], str]] = [
    ("accelerate", {"tp": 2}, "layout tp is not exported to accelerate: Accelerate slices no model itself"),
    ("accelerate", {"pp": 2}, "layout pp is not exported to accelerate: Accelerate cuts no stages for training"),
    ("accelerate", {"dp_shard": 2, "tp": 2}, "layout fsdp x tp is not exported to accelerate: "),
    ("deepspeed", {"tp": 2}, "layout tp is not exported to deepspeed: its tensor parallelism slices other matrices"),
    ("deepspeed", {"pp": 2}, "layout pp is not exported to deepspeed: its pipelines take models rewritten"),
    ("deepspeed", HSDP, "layout hsdp is not exported to deepspeed: MiCS is "),
    ("trl", MP, "layout mp is not exported to trl: its Trainer cuts no stages"),
    ("trl", HSDP, "layout hsdp is not exported to trl: no test has run it there"),
    ("torchtitan", MP, "layout mp is not exported to torchtitan: it has no schedule"),
]


@pytest.mark.parametrize(("to", "layout", "said"), LAYOUTS)
def test_a_layout_without_counterpart_is_refused(to, layout, said) -> None:
    found = refusal(make(layout=layout, hardware="4x L4"), to)
    assert found.startswith(f"plan.json: {said}")
    assert "plan again with --set layout=fsdp, or one of " in found


def zero(stage: int) -> dict[str, Any]:
    return {"dp_shard": 2, "zero_stage": stage, "reshard_after_forward": False}


DDP: dict[str, Any] = {"layout": {"dp_replicate": 2}}
HOST_ZERO2 = {"layout": zero(2), "offload": "parameters"}
FSDP = "plan again with --set layout=fsdp"
#: Target, what is asked, and words of the sentence.
OTHERS: list[tuple[str, dict[str, Any], str]] = [
    *((to, {"layout": zero(1)}, f"layout zero1 is not exported to {to}: ") for to in ("accelerate", "trl")),
    ("torchtitan", {"layout": zero(1)}, "layout zero1 is not exported to torchtitan: "),
    ("accelerate", {"gradient_checkpointing": "selective"}, "computes whole blocks again; plan again with --set "),
    ("accelerate", {"offload": "optimizer"}, "train.offload optimizer is not exported to accelerate: FSDP2 offloads"),
    ("deepspeed", {"precision": "bf16"}, "train.precision bf16 is not exported to deepspeed: it keeps float32 masters"),
    ("deepspeed", {"gradient_checkpointing": "selective"}, "it has no counterpart"),
    ("torchtitan", {"precision": "fp16"}, "fp16 is not exported to torchtitan: it has no loss scaling"),
    ("torchtitan", SGD, "train.optimizer sgd is not exported to torchtitan: it has AdamW"),
    *(
        (to, {**DDP, "offload": "parameters"}, f"{to} offloads what it shards, and ddp shards nothing; {FSDP}")
        for to in ("accelerate", "deepspeed")
    ),
    ("deepspeed", HOST_ZERO2, f"DeepSpeed offloads weights in stage 3 only, and zero2 is stage 2; {FSDP}"),
    *(
        (to, {"hardware": "cpu:2"}, f"{to} spreads fsdp over GPUs only, and hardware is cpu:2")
        for to in ("accelerate", "trl", "torchtitan")
    ),
    ("skypilot", {"hardware": "cpu:2"}, "SkyPilot has no name for cpu that is known here; it has A10, "),
    ("skypilot", {"hardware": "2x RTX-4080"}, "no name for RTX-4080 that"),
    ("axolotl", DDP, "weights of ddp in bfloat16; plan again with --set train.precision="),
    ("axolotl", {"precision": "bf16"}, "weights of fsdp in float32, which FSDP2 makes of them"),
    ("llama-factory", {"precision": "bf16"}, "no pure bfloat16 under DeepSpeed"),
    ("ms-swift", {"precision": "bf16"}, "keeps float32 masters under DeepSpeed"),
    ("ms-swift", {"layout": {"dp_shard": 2, "tp": 2}}, "layout fsdp x tp is not exported to ms-swift"),
    ("trl", {"job": {"method": "lora"}, "precision": "bf16"}, "for adapters, which PEFT keeps in float32; write mixed"),
    *(
        ("trl", {"job": job}, said)
        for job, said in (
            ({"data": {"path": ["a.jsonl", "b.jsonl"]}}, "data.path is exported to trl where it is one source of weig"),
            ({"data": {"path": "a.txt"}}, "data.path names a.txt, which is not exported to trl; name a file (.jsonl"),
            ({"data": {"packing": True}}, "data.packing is not exported to trl, which packs otherwise"),
            ({"data": {"train_on": "completion"}}, "data.train_on: completion is not exported to trl"),
            ({"train": {"disable_dropout": True}}, "train.disable_dropout is not exported to trl"),
            ({"train": {**SGD, "momentum": 0.9}}, "train.momentum is not exported to trl, whose sgd has none"),
        )
    ),
    *(
        ("axolotl", {"job": {"method": "lora", **job}}, said)
        for job, said in (
            ({"data": {"columns": {"messages": "m"}}}, "data.columns is not exported to axolotl; write rows and token"),
            ({"data": {"chat_template": "t"}}, "data.chat_template is not exported to axolotl; write rows and"),
            ({"lora": {"lora_alpha": 0.5}}, "lora.lora_alpha 0.5 is not exported to axolotl, where it is a whole numb"),
            ({"data": {"train_on": "completion"}}, "data.train_on: completion is not exported to axolotl, which"),
        )
    ),
    ("ms-swift", {"job": {"data": {"path": {"path": "a/b", "split": "dev"}}}}, "data.path with a split is not exp"),
    ("trl", {"job": {"rope_scaling": {"type": "linear", "factor": 2.0}}}, "rope_scaling is not exported to trl"),
    ("torchtitan", {"job": {"model": "tinyllama-1.1b"}}, "torchtitan has no configuration of TinyLlama/"),
    ("torchtitan", {"job": {"train": {"max_steps": None}}}, "counts steps and no epochs; write train.max_steps"),
    ("torchtitan", {"layout": {"pp": 2, "schedule": "zero_bubble"}}, "layout.schedule zero_bubble is not exported"),
]


@pytest.mark.parametrize(("to", "how", "said"), OTHERS)
def test_other_choices_without_counterpart_are_refused(to, how, said) -> None:
    assert said in refusal(make(**how), to)


@pytest.mark.parametrize("to", TRAINERS)
def test_what_no_other_trainer_has_is_refused_with_every_reason_at_once(to) -> None:
    layout = {"dp_shard": 2, "min_num_params": 10**9}
    chosen = make(job={"method": "qlora"}, optimizer="adafactor", layout=layout, micro_batch_size=3)
    said = refusal(chosen, to).splitlines()
    reasons = [line.removeprefix("plan.json: ").split(" is ")[0] for line in said]
    assert reasons == ["method qlora", "train.optimizer adafactor", "layout.min_num_params", "a global batch of 8"]
    assert said[2].endswith("where each block is gathered alone; leave it out")
    assert "no product of micro-batch 3 and 2 ranks" in said[3]
    assert said[3].endswith("plan again with another train.global_batch_size or train.micro_batch_size")
    assert f"layout.prefetch is not exported to {to}" in refusal(make(layout={"dp_shard": 2, "prefetch": 2}), to)


def test_a_plan_that_chose_nothing_or_parts_of_several_nodes_is_refused() -> None:
    empty = Plan(job={}, hardware={}, model={}, candidates=(), chosen=None, rejected=())
    with pytest.raises(UnsupportedError, match=r"^p.json: nothing fits, and so there is nothing to export"):
        Chosen.of(empty, path="p.json")


@pytest.mark.parametrize("to", TARGETS)
def test_every_target_has_a_case_that_works(to) -> None:
    made = TARGETS[to].write(make())
    assert made.files and made.run
