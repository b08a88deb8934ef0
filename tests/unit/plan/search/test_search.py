"""The choice: golden cases, a reason for everything, and what must never turn round."""

import pytest

from shardwise.errors import UnsupportedError
from shardwise.plan.answer import answer
from shardwise.plan.search.gpu_counts import formed_parts, parts, smallest_that_fits
from shardwise.plan.search.question import ask
from shardwise.spec.layout.axes import STRATEGIES
from shardwise.spec.plan.file import plan_from_json
from tests.marks import first
from tests.refusals import must_refuse
from tests.speed import quiet_seconds
from tests.unit.plan.asking import find_model, job, parse_hardware, parse_job, plan

BATCH = "train: {global_batch_size: 64}\n"
LARGE = "data: {max_length: 4096}\ntrain: {global_batch_size: 1024}\n"


def strategies(answer):
    return {c.execution.layout.strategy for c in answer.candidates if c.fits}


def test_offload_is_advised_and_chosen_as_far_as_the_hosts_memory_goes() -> None:
    text = "data: {max_length: 2048}\n" + BATCH
    answer = plan("llama-3.1-8b", "1x L4", text)
    assert answer.advice[:2] == ("method: lora would fit", "2x L4 would fit with offload: parameters")
    assert plan("llama-3.1-8b", "2x L4", text).best.execution.offload == "parameters"
    stated = "data: {max_length: 2048}\ntrain: {global_batch_size: 64, offload: none}\n"
    assert not any("with offload" in sentence for sentence in plan("llama-3.1-8b", "1x L4", stated).advice)
    assert plan("codellama-34b", "1x A100-SXM-80GB", "train: {precision: bf16, global_batch_size: 1}\n").best is None
    stated = "train: {precision: bf16, global_batch_size: 1, offload: parameters}\n"
    assert plan("codellama-34b", "1x A100-SXM-80GB", stated).best is not None
    assert plan("llama-3.1-8b", "1x A100-SXM-80GB").best.execution.offload == "optimizer"


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        ("{dp_shard: 3}", "layout takes 3 of the 4 GPUs: 1 is idle, and not counted in costs and rates"),
        ("{tp: 2}", "layout takes 2 of the 4 GPUs: 2 are idle, and not counted in costs and rates"),
        ("{dp_shard: 4}", None),
        ("fsdp", None),
    ],
)
def test_gpus_that_a_stated_product_leaves_over_are_said_to_be_idle(layout, says):
    reasons = plan("tinyllama-1.1b", "4x H100-SXM", f"method: lora\nlayout: {layout}\n").best.reasons
    assert [reason for reason in reasons if "idle" in reason] == ([says] if says else [])


def seconds_of(model, hardware, text, *, limit):
    return quiet_seconds(lambda: plan(model, hardware, text), limit=limit)


@pytest.mark.parametrize("goal", first(0, ["cheapest", "fastest", "fewest-gpus"], ci=1))
@pytest.mark.parametrize("method", ["full", pytest.param("lora", marks=pytest.mark.slow)])
@pytest.mark.parametrize("asked", [LARGE, pytest.param("", marks=pytest.mark.slow)], ids=["large", "defaults"])
def test_405b_on_a_thousand_gpus_is_planned_in_seconds(asked, method, goal):
    assert seconds_of("llama-3.1-405b", "128 x 8x H100-SXM", f"method: {method}\ngoal: {goal}\n{asked}", limit=5) < 5


@pytest.mark.parametrize("hardware", ["1x L4", "4x L4", "2 x 4x L4"])
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_every_strategy_is_a_candidate_or_has_a_reason(hardware, method):
    answer = plan("llama-3.2-3b", hardware, f"method: {method}\n")
    named = strategies(answer) | {r.strategy for r in answer.rejected}
    assert named >= set(STRATEGIES) | ({"single"} if hardware == "1x L4" else set())
    assert all(len(r.reason) > 20 for r in answer.rejected)
    assert all(c.reasons for c in answer.candidates)
    chosen = {answer.best.execution.layout.strategy} if answer.best else set()
    assert chosen == strategies(answer) - {r.strategy for r in answer.rejected}


COPIES = "layout: {dp_replicate: 2, dp_shard: 4, zero_stage: 1, ep: 2}\n"
SELECTIVE = "layout: {dp_shard: 8, ep: 2}\ntrain: {gradient_checkpointing: selective}\n"
ASKED_FOR = [
    ("llama-3.1-8b", "method: qlora\nlora: {use_dora: true}\n", "qlora is not trained with lora.use_dora"),
    ("llama-3.1-8b", "method: qlora\nlora: {modules_to_save: [down_proj]}\n", "lora.modules_to_save names down_proj"),
    ("gpt2", "method: qlora\n", "qlora does not quantise the transposed matrices of gpt2"),
    ("falcon-7b", "method: qlora\n", "qlora does not quantise falcon, whose linear layers are no nn.Linear; use lora"),
    ("llama-3.1-8b", "method: qlora\ntrain: {compile: true}\n", "compile is not trained with method qlora"),
    ("llama-3.1-8b", "layout: tp\ntrain: {optimizer: adamw_8bit}\n", "optimizer adamw_8bit is not trained under tp"),
    ("mixtral-8x7b", "train: {compile: true}\n", "compile is not trained with a mixture of experts"),
    ("llama-4-scout", "layout: {dp_shard: 8, ep: 2}\nmethod: lora\n", "llama4_text runs every token through every"),
    ("mixtral-8x7b", "layout: {tp: 2, dp_shard: 4, ep: 2}\n", "ep is not trained with tp by this version"),
    ("qwen1.5-moe-a2.7b", "layout: {dp_shard: 8, ep: 8}\n", "ep = 8 does not divide the 60 experts of each block"),
    ("llama-3.1-8b", "layout: {dp_shard: 8, ep: 8}\n", "deals experts among ranks, and llama has none"),
    ("mixtral-8x7b", f"{COPIES}method: lora\n", "ep is not trained with zero1 over several copies"),
    ("mixtral-8x7b", SELECTIVE, "gradient_checkpointing selective is not trained with ep"),
]


@pytest.mark.parametrize(("model", "text", "sentence"), ASKED_FOR, ids=[text or model for model, text, _ in ASKED_FOR])
def test_what_is_asked_for_and_not_trained_is_forecast_and_says_so(model, text, sentence):
    answer = plan(model, "8x H200", text)
    assert answer.best is not None
    assert all(any(sentence in said for said in c.not_trained) for c in answer.candidates)
    assert plan_from_json(answer.to_json()) == answer


def test_auto_chooses_among_what_is_trained() -> None:
    """Zero-bubble schedules do not go with selective recompute, nor slices with compile."""
    for text in ("", "method: lora\n", "goal: cheapest\n", "train: {optimizer: adamw_8bit}\n"):
        answer = plan("llama-3.1-8b", "8x H200", text)
        assert not any(c.not_trained for c in answer.candidates)
    answer = plan("llama-3.1-405b", "16 x 8x H100-SXM", "train: {offload: none}\n")
    assert answer.best is not None
    assert all(not candidate.not_trained for candidate in answer.candidates)
    compiled = plan("llama-3.1-8b", "4x H100-SXM", "train: {compile: true}\n")
    assert {candidate.execution.layout.tp for candidate in compiled.candidates} == {1}
    assert all(not candidate.not_trained for candidate in compiled.candidates)
    stated = plan("llama-3.1-8b", "4x H100-SXM", "layout: {pp: 4, schedule: zero_bubble}\n")
    assert {one.execution.gradient_checkpointing for one in stated.candidates} <= {"none", "full"}


STATED = [
    ("layout: zero2", lambda e: e.layout.strategy == "zero2"),
    ("layout: {dp_shard: 2, dp_replicate: 2}", lambda e: e.layout.strategy == "hsdp"),
    ("layout: {dp_shard: 2}", lambda e: e.layout.world_size == 2),
    ("train: {micro_batch_size: 3}", lambda e: e.micro_batch_size == 3),
    ("train: {gradient_checkpointing: selective}", lambda e: e.gradient_checkpointing == "selective"),
    ("train: {loss: full}", lambda e: e.loss == "full"),
    ("train: {precision: bf16}", lambda e: e.precision == "bf16"),
    ("train: {optimizer: sgd}", lambda e: e.optimizer == "sgd"),
    ("train: {attn_implementation: eager}", lambda e: e.attn_implementation == "eager"),
]


@pytest.mark.parametrize(("text", "obeys"), STATED, ids=[text for text, _ in STATED])
def test_a_stated_value_is_obeyed_by_every_candidate(text, obeys):
    answer = plan("llama-3.2-1b", "4x A100-80GB", text + "\n")
    assert answer.candidates
    assert all(obeys(c.execution) for c in answer.candidates)


SDPA = "train: {attn_implementation: sdpa}"
PADDED = "data: {max_length: 512}\n"
REFUSED = [
    ("llama-3.2-1b", "8x L4", "layout: {dp_shard: 16}", "16 GPUs"),
    ("gpt2", "1x L4", "data: {max_length: 2048}", "1024 learned positions"),
    ("gemma-2-2b", "4x H100-SXM", SDPA, "eager"),
    ("gpt-oss-20b", "4x H100-SXM", SDPA, "is sdpa, which transformers has not for this model; use eager"),
]


@pytest.mark.parametrize(("model", "hardware", "text", "says"), REFUSED)
def test_what_the_hardware_or_the_model_has_not_is_refused(model, hardware, text, says):
    must_refuse(UnsupportedError, says, plan, model, hardware, text)


@pytest.mark.parametrize(
    ("model", "hardware", "text", "kernel"),
    [
        ("llama-3.2-1b", "4x A100-80GB", "", "varlen"),
        ("llama-3.2-1b", "cpu:2", "", "varlen"),
        ("llama-3.2-1b", "4x A100-80GB", "train: {precision: fp32}\n", "sdpa"),
        ("llama-3.2-1b", "4x T4", "", "sdpa"),
        ("gemma-2-2b", "4x A100-80GB", "", "eager"),
        ("gpt2", "4x A100-80GB", "", "sdpa"),
        ("gpt2", "4x A100-80GB", "train: {disable_dropout: true}\n", "varlen"),
        ("llama-3.2-1b", "cpu:2", PADDED, "varlen"),
        ("llama-3.2-1b", "4x A100-80GB", PADDED, "sdpa"),
        ("llama-3.2-1b", "4x A100-80GB", PADDED + "train: {attn_implementation: varlen}\n", "varlen"),
        ("llama-3.2-1b", "cpu:2", PADDED + "objective: dpo\n", "sdpa"),
        ("qwen3.5-2b", "cpu:2", PADDED, "sdpa"),
        ("opt-1.3b", "cpu:2", PADDED, "sdpa"),
    ],
)
def test_rows_are_computed_by_document_where_that_is_possible(model, hardware, text, kernel):
    asked = "method: lora\n" + (text if PADDED in text else f"data: {{packing: true, max_length: 512}}\n{text}")
    found = plan(model, hardware, asked).candidates
    assert {c.execution.attn_implementation for c in found if not c.execution.layout.splits_rows} == {kernel}


@pytest.mark.parametrize(
    ("model", "method", "once"),
    [("tinyllama-1.1b", "full", True), ("llama-3.1-8b", "full", False), ("codellama-34b", "lora", False)],
)
def test_gradients_are_reduced_once_a_step_where_whole_ones_fit_and_it_saves_time(model, method, once):
    """Whole gradients of 8 billion parameters do not fit; reducing those of adapters is cheap."""
    asked = f"method: {method}\nlayout: fsdp\ndata: {{max_length: 512}}\n"
    answer = plan(model, "8x RTX-4090", asked + "train: {global_batch_size: 256, micro_batch_size: 4}\n")
    assert answer.best.execution.gradient_accumulation_steps == 8
    assert answer.best.execution.reduce_once == once


def test_fewest_gpus_takes_what_fits_and_a_layout_that_no_number_makes_is_refused() -> None:
    answer = plan("tinyllama-1.1b", "8x H100-SXM", "method: lora\ngoal: fewest-gpus\n")
    assert answer.best.execution.layout.world_size == 1
    answer = plan("llama-3.1-8b", "8x H100-SXM", "goal: fewest-gpus\ntrain: {offload: none}\n")
    assert 1 < answer.best.execution.layout.world_size < 8
    must_refuse(UnsupportedError, "give no such product", plan, "llama-3.1-8b", "7x H100-SXM", "layout: hsdp\n")
    fewest = "layout: hsdp\ngoal: fewest-gpus\ntrain: {offload: none}\n"
    assert plan("llama-3.1-8b", "7x H100-SXM", fewest).best.execution.layout.dp_shard in (2, 3)


@pytest.mark.parametrize("goal", ["cheapest", "fewest-gpus"])
@pytest.mark.parametrize("stated", ["hsdp", "pp", "tp", "[mp, ddp, fsdp]"])
def test_numbers_of_gpus_that_a_stated_layout_has_no_product_of_are_passed_over(stated, goal):
    """Hybrid sharding over 2, 3 or 5 GPUs cannot be formed, nor can four be sliced by three."""
    text = f"goal: {goal}\nlayout: {stated}\ntrain: {{offload: none, global_batch_size: 64}}\n"
    layout = plan("llama-3.1-8b", "8x H100-SXM", text).best.execution.layout
    assert layout.strategy in stated
    assert layout.world_size <= 8
    assert layout.world_size % 2 == 0 or not stated.startswith(("hsdp", "tp"))


@pytest.mark.parametrize("hardware", ["8x H100-SXM", "2 x 8x H100-SXM", "8 x 8x H100-SXM"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_one_job_is_planned_in_a_fraction_of_a_second(method, hardware):
    assert seconds_of("llama-3.1-8b", hardware, f"method: {method}\n{BATCH}", limit=2) < 2


def test_a_list_of_layouts_is_chosen_from_and_nothing_else_is_looked_at():
    def strategies(text, hardware="4x RTX-6000-Ada"):
        answer = plan("llama-3.1-8b", hardware, f"method: lora\n{text}")
        return {one.execution.layout.strategy for one in answer.candidates}, {left.strategy for left in answer.rejected}

    named, left = strategies("layout: [tp, fsdp, hsdp]")
    assert named | left == {"tp", "fsdp", "hsdp"}
    assert "pp" in strategies("")[0]
    assert strategies("layout: [hsdp]", hardware="2x RTX-6000-Ada") == (set(), {"hsdp"})
    listed = plan("llama-3.1-8b", "4x RTX-6000-Ada", "method: lora\nlayout: [fsdp]").best
    stated = plan("llama-3.1-8b", "4x RTX-6000-Ada", "method: lora\nlayout: fsdp").best
    assert (listed.execution, listed.time) == (stated.execution, stated.time)


@pytest.mark.parametrize(
    ("goal", "hardware", "counts"),
    [
        ("fewest-gpus", "4x L4", range(1, 5)),
        ("cheapest", "4x L4", range(1, 5)),
        ("fewest-gpus", "130 x 2x L4", [1, *range(2, 261, 2)]),
        ("cheapest", "130 x 2x L4", [1, *range(2, 17, 2), 32, 64, 128, 256, 260]),
    ],
)
def test_which_numbers_of_gpus_are_looked_at(goal, hardware, counts):
    assert [part.num_gpus for part in parts(job(goal=goal), parse_hardware(hardware))] == list(counts)


SMALLEST = [
    ("llama-3.1-8b", "12 x 2x L4", "method: full\ntrain: {global_batch_size: 64, offload: none}\n"),
    ("llama-3.1-70b", "12 x 8x A100-80GB-SXM", "method: full\ntrain: {global_batch_size: 96, offload: none}\n"),
    ("gemma-2-27b", "20 x 3x L4", "method: lora\ntrain: {global_batch_size: 60, offload: none}\n"),
    ("mixtral-8x7b", "30 x 1x A100-40GB-SXM", "method: lora\ntrain: {global_batch_size: 30, offload: none}\n"),
    ("llama-3.1-8b", "14 x 1x L4", "method: full\nlayout: fsdp\ntrain: {global_batch_size: 28, offload: none}\n"),
    ("llama-3.1-70b", "11 x 2x RTX-4090", "method: full\ntrain: {global_batch_size: 8, offload: none}\n"),
]


@pytest.mark.parametrize(("model", "hardware", "text"), first(5, SMALLEST, ci=1))
def test_no_smaller_part_holds_anything(model: str, hardware: str, text: str) -> None:
    cluster, shape = parse_hardware(hardware), find_model(model, offline=True)
    question = ask(parse_job(f"model: m\ngoal: fewest-gpus\n{text}"), model=shape, cluster=cluster)
    found = smallest_that_fits(question)
    for part in formed_parts(question.job, cluster):
        if found is not None and part.num_gpus >= found.num_gpus:
            break
        assert plan(model, part.name, text).best is None
    if found is not None:
        assert answer(question).best.execution.layout.world_size == found.num_gpus
