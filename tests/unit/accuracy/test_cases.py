"""A published row becomes the question that it means, or says why not."""

import pytest

from accuracy.cases import LeftOutError, case_of
from accuracy.forecast import answer
from accuracy.naming import CATALOGUE, CONFIGS, GPUS
from shardwise.catalog.config import shape_from_data
from shardwise.catalog.gpus import find_gpu
from shardwise.catalog.models import known_models
from tests.unit.accuracy.published import LORA, row


def test_rows_filled_from_a_sources_configurations_take_the_loss_that_these_name():
    filled = "recipes/configs/llama3_1/*.yaml for optimizer/rank"
    told = {"source_id": "torchtune-readme", **LORA}
    assert case_of(row(**told, config_filled_from=filled)).execution.loss == "chunked"
    assert case_of(row(**told, config_filled_from="README text")).execution.loss == "full"


def test_a_row_becomes_job_cluster_and_execution():
    case = case_of(row(grad_accum="4"))
    execution = case.execution
    assert (case.model.family, case.cluster.name, case.job.method) == ("llama", "2x A100-80GB", "full")
    assert (execution.layout.strategy, execution.micro_batch_size, execution.gradient_accumulation_steps) == (
        "fsdp",
        2,
        4,
    )
    assert (execution.precision, execution.gradient_checkpointing) == ("mixed", "full")
    assert case.job.train.global_batch_size == 2 * 4 * 2
    assert case.job.data.max_length == 1024


@pytest.mark.parametrize(
    ("words", "strategy"),
    [
        ("NO_SHARD (FSDP in ddp mode)", "ddp"),
        ("ZeRO-1", "zero1"),
        ("distributed optimizer (FSDP 0)", "zero1"),
        ("SHARD_GRAD_OP", "zero2"),
        ("ZeRO-3", "fsdp"),
        ("FULL_SHARD (FSDP2)", "fsdp"),
        ("HYBRID_SHARD", "hsdp"),
    ],
)
def test_names_of_sharding_mean_what_they_mean_here(words, strategy):
    gpus = {"n_gpus": "16", "n_nodes": "2"} if strategy == "hsdp" else {}
    assert case_of(row(shard_strategy=words, **gpus)).execution.layout.strategy == strategy


@pytest.mark.parametrize(
    ("cells", "precision"),
    [
        ({"master_weights": "none (pure bfloat16)"}, "bf16"),
        ({"precision": "fp32", "master_weights": ""}, "fp32"),
        ({"precision": "bf16-true", "master_weights": "none"}, "bf16"),
        (LORA, "mixed"),
        ({**LORA, "source_id": "fsdp_qlora"}, "bf16"),
    ],
)
def test_types_follow_masters_method_and_stack(cells, precision):
    assert case_of(row(**cells)).execution.precision == precision


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"spec_grade": "C"}, "grade C"),
        ({"model": "nobody/unheard-of"}, "is not known"),
        ({"gpu_type": ""}, "GPU is not stated"),
        ({"precision": "fp8 (torchao)"}, "8 bits"),
        ({"micro_batch": ""}, "micro_batch is not stated"),
        ({"activation_checkpointing": ""}, "recompute is not stated"),
        ({"shard_strategy": ""}, "how several GPUs share"),
        ({"packing": "alpaca, padded"}, "many lengths"),
        ({"notes": "[flag: 3 x 5 is not 16]"}, "does not multiply out"),
        ({"offload": "activation offloading"}, "activations are offloaded"),
        ({**LORA, "lora_rank": ""}, "rank or targets"),
        ({"method": "lora (rank32-dora)"}, "variant of LoRA"),
        ({"tp": "3"}, "does not multiply out"),
        ({"ep": "2"}, "expert parallel"),
    ],
)
def test_a_row_that_says_too_little_or_something_else_is_left_out_with_its_reason(cells, reason):
    with pytest.raises(LeftOutError, match=reason):
        case_of(row(**cells))


def test_lora_targets_are_those_that_the_model_has():
    case = case_of(row(**{**LORA, "lora_targets": "q_proj,k_proj,v_proj,o_proj,c_attn"}))
    assert case.job.lora is not None
    assert case.job.lora.target_modules == ["q_proj", "k_proj", "v_proj", "o_proj"]


def test_every_name_in_the_tables_leads_to_an_entry():
    assert set(CATALOGUE.values()) <= set(known_models())
    for name, config in CONFIGS.items():
        assert shape_from_data(config, file=name).num_parameters > 0
    for name, _, _ in GPUS.values():
        assert find_gpu(name).gpu.name == name


@pytest.mark.parametrize(
    ("name", "billions"),
    [("qwen-7b", 7.72), ("mpt-7b", 6.65), ("nemotron4-15b", 15.6), ("ibm/powerlm-3b", 3.51), ("qwen-72b", 72.3)],
)
def test_configurations_written_here_count_what_their_cards_say(name, billions):
    assert shape_from_data(CONFIGS[name], file=name).num_parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_experts_are_modules_that_are_quantised_as_in_the_stacks_that_were_measured():
    qlora = {**LORA, "method": "qlora", "model": "mistralai/Mixtral-8x7B-Instruct-v0.1"}
    found = answer(case_of(row(**qlora)))
    assert found.parts["weights"] < 16e9  # two shards of 47 billion parameters in 4 bits; in 16 bits it would be 47e9


def test_what_the_planner_refuses_is_left_out_in_its_words():
    with pytest.raises(LeftOutError, match=r"refused: lora\.target_modules names embed_tokens"):
        answer(case_of(row(**{**LORA, "lora_targets": "q_proj,embed_tokens"})))


@pytest.mark.parametrize("cells", [{"tp": "2"}, {"pp": "2", "grad_accum": "4"}, {"shard_strategy": "ZeRO-1"}])
def test_every_layout_of_the_tables_is_forecast(cells):
    found = answer(case_of(row(**cells)))
    assert found.memory["allocated"] > 0 and found.tokens_per_second > 0


def test_kinds_of_memory_are_ordered_as_the_allocator_and_the_driver_count():
    found = answer(case_of(row()))
    assert 0 < found.memory["allocated"] <= found.memory["reserved"] < found.memory["device"]
