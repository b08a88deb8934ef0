"""`plan --for`: asks for what the target can say alone, and says what that needs beside ours."""

import random
from dataclasses import replace

import pytest

from shardwise import api
from shardwise.api.plans.for_target import targets_to_plan_for
from shardwise.catalog.calibration import known_stacks
from shardwise.errors import InputError, UnsupportedError
from shardwise.interop.targets import TARGETS
from shardwise.plan import on_stack
from shardwise.spec.plan.file import plan_from_json
from tests.marks import every
from tests.refusals import said_by

JOB = ("model=qwen3-0.6b", "data.max_length=2048", "train.max_steps=10", "data.path=rows.jsonl")
DRAWN = (
    *("train.precision=bf16", "train.precision=fp32", "train.offload=auto", "train.offload=parameters"),
    *("layout=[fsdp, tp]", "train.warmup_ratio=0.1", "data.packing=true", "data.train_on=completion"),
)


@pytest.mark.parametrize("target", every(2, targets_to_plan_for(), ci=1))
def test_no_drawn_job_is_planned_for_a_target_and_then_refused_to_it(target) -> None:
    draw, exported = random.Random(49), 0
    for _ in range(20):
        asked = ["data.path=rows.jsonl", "data.max_length=1024", f"train.global_batch_size={draw.choice((24, 64))}"]
        asked += [f"model={draw.choice(('qwen3-0.6b', 'smollm2-135m'))}", f"method={draw.choice(('full', 'lora'))}"]
        asked += [draw.choice(("hardware=1x RTX-3090", "hardware=8x H100-SXM", "hardware=2 x 8x A100-80GB"))]
        asked += [draw.choice(("train.max_steps=5", "data.num_rows=100")), *draw.sample(DRAWN, draw.choice((0, 1, 2)))]
        try:
            made = api.plan(overrides=asked, target=target)
        except UnsupportedError:
            continue
        if made.best:
            assert made.on_stack and made.on_stack.capacity_bytes == made.best.memory.capacity_bytes
            exported += made.on_stack.fits and bool(api.export_plan(made, to=target, path="plan.json").files)
    assert exported


@pytest.mark.parametrize("hardware", ["2x T4", "4x RTX-4090", "8x MI300X", "cpu:2"])
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize("target", targets_to_plan_for())
def test_a_target_refuses_what_no_plan_could_be_or_nothing(target, method, hardware) -> None:
    asked = [*JOB, f"hardware={hardware}", f"method={method}", "train.global_batch_size=16"]
    try:
        api.plan(overrides=asked, target=target)
    except UnsupportedError as refused:
        limits = TARGETS[target].limits
        impossible = {f"method {method} is not": method not in limits.methods}
        impossible["fp16 is not"] = hardware == "2x T4" and "fp16" not in limits.precisions
        impossible["spreads over GPUs only"] = hardware == "cpu:2" and not limits.on_cpu
        assert any(words in str(refused) for words, holds in impossible.items() if holds), str(refused)


def test_a_loss_that_is_stated_is_that_of_the_target_too() -> None:
    """torchtitan's is in chunks unless whole logits are asked for, of slices with 16 bytes each."""
    asked = [*JOB, "hardware=4x H100-SXM", "train.micro_batch_size=2", "train.global_batch_size=8"]
    peaks = {
        (loss, layout): api.plan(overrides=[*asked, f"train.loss={loss}", f"layout={layout}"], target="torchtitan")
        for loss in ("chunked", "full")
        for layout in ("fsdp", "tp")
    }
    whole, sliced = (peaks["full", layout].on_stack for layout in ("fsdp", "tp"))
    tokens, words = 2 * 2048, 151936
    assert whole.terms["logits made all at once"] == pytest.approx(12 * tokens * words, rel=0.02)
    assert sliced.terms["logits made all at once"] == pytest.approx(16 * tokens * words / 4, rel=0.02)
    for layout in ("fsdp", "tp"):
        assert "logits made all at once" not in peaks["chunked", layout].on_stack.terms


def test_a_target_is_planned_for_with_what_takes_its_memory() -> None:
    """A batch whose whole logits take more than the GPU has is taken in smaller parts."""
    asked = [*JOB, "hardware=1x RTX-4090", "train.micro_batch_size=8", "train.gradient_checkpointing=full"]
    assert api.plan(overrides=asked).best is not None
    assert api.plan(overrides=asked, target="llama-factory").best is None
    smaller = api.plan(overrides=[*asked, "train.micro_batch_size=auto"], target="llama-factory")
    assert smaller.best.execution.micro_batch_size < 8
    made = api.plan(overrides=[*JOB, "hardware=2x H100-SXM"], target="accelerate")
    assert made.on_stack and made.best and made.on_stack.peak_bytes > made.best.memory.peak_bytes
    assert made.on_stack.sentence in made.notes
    assert "logits made all at once take" in made.on_stack.sentence and "Liger" in made.on_stack.sentence
    assert plan_from_json(made.to_json()).on_stack == made.on_stack
    several = replace(made.on_stack, terms={**made.on_stack.terms, "buffers of gradients": 2**30})
    assert "the first of which goes with a loss" in several.sentence
    made = api.plan(overrides=[*JOB, "hardware=2x H100-SXM", "train.loss=full"])
    assert "the figures are of this trainer; others keep more copies of their logits" in "\n".join(made.notes)


@pytest.mark.parametrize(
    ("stated", "target", "said"),
    [
        ("layout=tp", "trl", "layout tp is not exported to trl: its Trainer slices no model by itself"),
        ("layout=[tp, fsdp x tp]", "trl", "layout: trl has none of tp, fsdp x tp; it has fsdp, zero2, ddp, single"),
        ("hardware=cpu:2", "axolotl", "hardware: axolotl spreads over GPUs only; name GPUs, or cpu:1"),
    ],
)
def test_what_a_target_cannot_say_is_refused_before_it_is_planned(stated, target, said) -> None:
    assert said in said_by(UnsupportedError, api.plan, overrides=[*JOB, "hardware=4x L4", stated], target=target)


def test_trainers_whose_memory_is_not_known_are_not_planned_for() -> None:
    for target, why in (
        ("automodel", "published rows the unit of one and the sharding of the other are not certain"),
        ("ms-swift", "what its steps hold is not known, and a plan is exported to it all the same"),
        ("swift", "there is no such trainer"),
    ):
        said = said_by(InputError, api.plan, overrides=[*JOB, "hardware=4x L4"], target=target)
        assert f"{why}; write one of accelerate, deepspeed" in said
    assert set(targets_to_plan_for()) < set(TARGETS)


def test_a_loss_in_tiles_has_one_buffer_and_gradients_in_float32() -> None:
    """TRL's, of as many words for any vocabulary: kernels/chunked_logprob.py of trl 1.16.0."""
    asked = [*JOB, "hardware=1x H100-SXM", "train.micro_batch_size=1", "train.global_batch_size=1"]
    made = api.plan(overrides=asked, target="trl")
    assert made.on_stack.setting == "" and "which goes with" not in made.on_stack.sentence
    stack = known_stacks()["trl"]
    wide, wider = (on_stack(made, replace(stack, tile=(4096, words))) for words in (2**21, 2**22))
    assert wider.peak_bytes - wide.peak_bytes == 2048 * 2**21 * 2  # of as many tokens as there are, in bfloat16
    assert wide.terms["float32 gradients of the head"] > 0
