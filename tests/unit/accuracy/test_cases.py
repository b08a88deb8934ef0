"""A published row becomes the question and the figures that it means, or says why not."""

import pytest

from accuracy.cases import LeftOutError, case_of
from accuracy.forecast import answer
from accuracy.naming import CATALOGUE, CONFIGS, GPUS
from accuracy.rows import memory_figures, tokens_per_second
from shardwise.catalog.config import shape_from_data
from shardwise.catalog.gpus import find_gpu
from shardwise.catalog.models import known_models
from shardwise.plan.memory.stack import Zero
from shardwise.units import GIB, MIB
from tests.unit.accuracy.published import LORA, row

TOLD = {"source_id": "torchtune-readme", **LORA}
ALLOCATED = "allocated_peak (HF Trainer torch.cuda.max_memory_allocated)"


def test_a_row_becomes_job_cluster_and_execution():
    case = case_of(row(grad_accum="4"))
    execution = case.execution
    assert (case.model.family, case.cluster.name, case.job.method) == ("llama", "2x A100-80GB", "full")
    assert (execution.layout.strategy, execution.gradient_accumulation_steps) == ("fsdp", 4)
    assert (execution.micro_batch_size, execution.loss) == (2, "full")
    assert (execution.precision, execution.gradient_checkpointing) == ("mixed", "full")
    assert case.job.train.global_batch_size == 2 * 4 * 2
    assert case.job.data.max_length == 1024


@pytest.mark.parametrize(
    ("cells", "meant"),
    [
        ({"shard_strategy": "NO_SHARD (FSDP in ddp mode)"}, "ddp"),
        ({"shard_strategy": "ZeRO-1"}, "zero1"),
        ({"shard_strategy": "distributed optimizer (FSDP 0)"}, "zero1"),
        ({"shard_strategy": "SHARD_GRAD_OP"}, "zero2"),
        ({"shard_strategy": "ZeRO-3"}, "fsdp"),
        ({"shard_strategy": "HYBRID_SHARD", "n_gpus": "16", "n_nodes": "2"}, "hsdp"),
        ({"master_weights": "none (pure bfloat16)"}, "bf16"),
        ({"precision": "fp32", "master_weights": ""}, "fp32"),
        ({"precision": "bf16-true", "master_weights": "none"}, "bf16"),
        (LORA, "mixed"),
        ({"offload": "activation offloading"}, "offloaded"),
        ({**LORA, "source_id": "fsdp_qlora"}, "bf16"),
        ({**TOLD, "config_filled_from": "recipes/configs/llama3_1/*.yaml for optimizer/rank"}, "chunked"),
        ({**TOLD, "config_filled_from": "README text"}, "full"),
    ],
)
def test_words_of_the_tables_mean_what_they_mean_here(cells, meant):
    execution = case_of(row(**cells)).execution
    assert meant in (execution.layout.strategy, execution.precision, execution.loss, execution.gradient_checkpointing)


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
        ({"offload": "activation offloading", "activation_checkpointing": "none"}, "activations are offloaded"),
        ({**LORA, "lora_rank": ""}, "rank or targets"),
        ({"method": "lora (rank32-dora)"}, "variant of LoRA"),
        ({"tp": "3"}, "does not multiply out"),
        ({"ep": "2"}, "expert parallel"),
    ],
)
def test_a_row_that_says_too_little_or_something_else_is_left_out_with_its_reason(cells, reason):
    with pytest.raises(LeftOutError, match=reason):
        case_of(row(**cells))


def test_every_name_in_the_tables_leads_to_an_entry():
    assert set(CATALOGUE.values()) <= set(known_models())
    billions = {"qwen-7b": 7.72, "mpt-7b": 6.65, "nemotron4-15b": 15.6, "ibm/powerlm-3b": 3.51, "qwen-72b": 72.3}
    for name, config in CONFIGS.items():
        counted = shape_from_data(config, file=name).num_parameters / 1e9
        assert counted == pytest.approx(billions.get(name, counted), rel=0.005)
    for name, _, _ in GPUS.values():
        assert find_gpu(name).gpu.name == name


@pytest.mark.parametrize("cells", [{}, {"tp": "2"}, {"pp": "2", "grad_accum": "4"}, {"shard_strategy": "ZeRO-1"}])
def test_every_layout_of_the_tables_is_forecast(cells):
    found = answer(case_of(row(**cells)))
    assert 0 < found.memory["allocated"] <= found.memory["reserved"] < found.memory["device"]
    assert found.tokens_per_second > 0


def test_lora_targets_are_those_that_the_model_has_and_what_the_planner_refuses_is_left_out_in_its_words():
    lora = case_of(row(**{**LORA, "lora_targets": "q_proj,k_proj,c_attn"})).job.lora
    assert lora.target_modules == ["q_proj", "k_proj"]
    with pytest.raises(LeftOutError, match=r"refused: lora\.target_modules names embed_tokens"):
        answer(case_of(row(**{**LORA, "lora_targets": "q_proj,embed_tokens"})))


def test_a_stack_holds_what_its_code_holds():
    """Weights, masters and frozen bases; losses and MLPs whole, in chunks and in tiles."""
    megatron = case_of(row(source_id="dgxc-benchmarking", activation_checkpointing="none"))
    assert megatron.execution.precision == "bf16" and megatron.difference.master_bytes == 16
    peft = case_of(row(source_id="dgxc-benchmarking", framework="HF PEFT + TRL + FSDP", **LORA))
    assert peft.difference.master_bytes == 0 and peft.difference.keeps_gradients
    prime = case_of(row(source_id="prime-rl-bench", fused_kernels="fused LM head in chunks of 2048", **LORA))
    assert (prime.execution.loss, prime.execution.mlp, prime.difference.widens) == ("chunked", "full", True)
    titan = [case_of(row(source_id="torchtitan-202412", tp=tp, n_gpus="4")) for tp in ("1", "2")]
    assert [case.difference.logit_bytes for case in titan] == [12, 16]
    trainers = ("HF Trainer", "DeepSpeed ZeRO-2")
    qwen = [case_of(row(source_id="qwen-readme", framework=trainer, **LORA)) for trainer in trainers]
    assert [case.difference.logit_bytes for case in qwen] == [12, 8]  # without autocast its own loss is in 16 bits
    assert [(c.execution.precision, c.difference.optimizer_copies) for c in qwen] == [("bf16", 2), ("mixed", 0)]
    assert qwen[1].difference.zero == Zero(stage=2, ranks=2, bucket_bytes=800_000_000, accumulates=False, kept_bytes=2)
    tiled = case_of(row(source_id="trl-1m-2026", notes="with MLP tiling; they must lie in host memory (inferred)"))
    assert (tiled.execution.mlp, tiled.execution.gradient_checkpointing) == ("chunked", "offloaded")
    assert tiled.difference.tile == (4096, 32768)


@pytest.mark.parametrize(
    ("cells", "figures"),
    [
        ({"mem_kind": ALLOCATED}, {"allocated": 20 * GIB}),
        ({"mem_kind": 'active_peak ("Peak Memory Active (GiB)")'}, {"active": 20 * GIB}),
        ({"mem_kind": "reserved_peak (torchtitan metrics max_reserved)"}, {"reserved": 20 * GIB}),
        ({"mem_kind": "NVML used memory (whole GPU, incl. CUDA context)"}, {"device": 20 * GIB}),
        ({"mem_kind": 'not stated (GPU memory "G")'}, {"unstated": 20 * GIB}),
        ({"mem_kind": "allocated right after forward (torch)"}, {}),
        ({"mem_kind": "capacity: max batch size that fits 24 GB"}, {}),
        ({"mem_scope": "TOTAL over 4 GPUs (exceeds one card)"}, {"allocated": 5 * GIB}),
        ({"nvidia_smi_mib": "25000"}, {"allocated": 20 * GIB, "device": 25000 * MIB}),
        ({"peak_mem_gib_derived": "", "peak_mem_gb": "31.5"}, {"unstated": 31.5 * GIB}),
        ({"outcome": "OOM", "nvidia_smi_mib": "81000"}, {}),
    ],
)
def test_figures_are_kept_apart_by_kind_and_are_those_of_one_gpu(cells, figures):
    assert memory_figures(row(**cells)) == figures


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({}, 18000.0),
        ({"tokens_per_s_per_gpu": "", "tokens_per_s_total": "7000"}, 7000.0),
        ({"tokens_per_s_per_gpu": "", "step_time_s": "2.0"}, 2048.0),
        ({"tokens_per_s_per_gpu": "", "samples_per_s_total": "12"}, 12288.0),
        ({"tokens_per_s_per_gpu": "", "samples_per_s_total": "3"}, None),
        ({"tokens_per_s_per_gpu": "", "total_time_as_printed": "512 s", "notes": "Time for 1,024 samples total"}, 2048),
        ({"tokens_per_s_per_gpu": ""}, None),
    ],
)
def test_throughput_is_tokens_per_second_over_all_gpus_however_it_was_printed(cells, expected):
    assert tokens_per_second(row(**cells), num_gpus=2, step_tokens=4096, length=1024) == expected
