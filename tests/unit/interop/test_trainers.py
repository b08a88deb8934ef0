"""Files for people who stay with their trainer: the plan's numbers in the other tool's words."""

import ast
import importlib.util
import json
import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest

from shardwise.data.read.messages import MARKS, SPEAKERS
from tests.unit.interop.conftest import export, make
from tests.unit.interop.test_launchers import TWO_NODES, yaml_of
from tests.unit.interop.test_refusals import zero

#: The keys of torchtitan 0.3.0 that are set; it refuses others, as `make test-exports` shows.
TORCHTITAN = {
    "parallelism": "data_parallel_replicate_degree data_parallel_shard_degree fsdp_reshard_after_forward "
    "tensor_parallel_degree pipeline_parallel_degree pipeline_parallel_schedule pipeline_parallel_microbatch_size",
    "training": "local_batch_size global_batch_size seq_len steps max_norm dtype mixed_precision_param "
    "enable_cpu_offload disable_cuda_graphs",
    "checkpoint": "enable initial_load_in_hf last_save_model_only last_save_in_hf export_dtype",
    "compile": "enable",
    **dict.fromkeys(("optimizer", "lr_scheduler", "activation_checkpoint", "model_spec", "hf_assets_path"), ""),
}
HOST = {"device": "cpu", "pin_memory": True}
BUCKET = {"reduce_bucket_size": 25_000_000}
STAGE_3 = {"stage": 3, **BUCKET, "stage3_max_reuse_distance": 0, "stage3_gather_16bit_weights_on_model_save": True}


def test_accelerate_reads_every_key_and_no_word_as_false() -> None:
    text = export(make(precision="fp32", layout={"dp_replicate": 2}), "accelerate").files["accelerate.yaml"]
    assert yaml_of(text)["mixed_precision"] == "no"
    assert yaml_of(text)["distributed_type"] == "MULTI_GPU"
    text = export(make(**TWO_NODES, gradient_checkpointing="full"), "accelerate").files["accelerate.yaml"]
    made = yaml_of(text)
    assert (made["distributed_type"], made["num_machines"], made["num_processes"]) == ("FSDP", 2, 8)
    assert made["mixed_precision"] == "bf16"
    sharding = made["fsdp_config"]
    assert (sharding["fsdp_version"], sharding["fsdp_reshard_after_forward"]) == (2, True)
    assert sharding["fsdp_activation_checkpointing"] is True
    sizes = {"dp_replicate_size": 2, "dp_shard_size": 4}
    assert made["parallelism_config"] == {f"parallelism_config_{name}": size for name, size in sizes.items()}
    assert "#   batch: 1 rows a process and forward, 1 forward a step: 8 rows a step in all" in text
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    launch = pytest.importorskip("accelerate.commands.launch")
    named = {field.name for one in (config_args.ClusterConfig, config_args.BaseConfig) for field in fields(one)}
    assert made.keys() <= named | {"compute_environment"}
    known = {action.dest for action in launch.launch_command_parser()._actions}
    assert {*sharding, *made["parallelism_config"]} <= known


def test_what_other_trainers_do_otherwise_is_said() -> None:
    said = "\n".join(export(make(job={"method": "lora"}), "accelerate").said)
    assert "`shardwise plan --set train.loss=full` says whether that fits" in said
    assert "the plan keeps frozen weights in bfloat16" in said
    assert "gradients are summed over GPUs in bfloat16 there, and in float32 here" in said
    said = "\n".join(export(make(job={"data": {"eval_fraction": 0.1}}, compile=True), "trl").said)
    assert "rows come in an order of transformers' own; with data.shuffle: false" in said
    assert "rows longer than max_length are cut there; the job says over_long: error" in said
    assert "nothing is evaluated there; its rows are all of data.path" in said
    recomputing = make(layout={"dp_replicate": 2}, gradient_checkpointing="full")
    for to in ("accelerate", "deepspeed"):
        assert "the script calls gradient_checkpointing_enable()" in "\n".join(export(recomputing, to).said)
    said = "\n".join(export(make(job={"train": {"weight_decay": 0.1}}, compile=True), "deepspeed").said)
    assert "norms and biases as a group of their own with weight_decay 0" in said
    assert "the script calls module.compile() on each" in said
    assert "the script says schedule: linear with 0 steps of warmup" in said


@pytest.mark.parametrize(
    ("layout", "how", "zero"),
    [
        ({"dp_replicate": 2}, {}, {"stage": 0}),
        (zero(1), {}, {"stage": 1, **BUCKET}),
        (zero(2), {}, {"stage": 2, **BUCKET}),
        ({"dp_shard": 2}, {}, STAGE_3),
        (zero(2), {"offload": "optimizer"}, {"stage": 2, **BUCKET, "offload_optimizer": HOST}),
        ({"dp_shard": 2}, {"offload": "all"}, {**STAGE_3, "offload_optimizer": HOST, "offload_param": HOST}),
    ],
)
def test_deepspeed_has_the_stage_of_the_layout(layout, how, zero) -> None:
    made = json.loads(export(make(layout=layout, **how), "deepspeed").files["deepspeed.json"])
    assert made["zero_optimization"] == zero
    assert (made["train_batch_size"], made["train_micro_batch_size_per_gpu"]) == (8, 4)
    assert made["torch_autocast"] == {"enabled": True, "dtype": "bfloat16"}
    assert made["optimizer"]["params"].get("torch_adam") == (None if how else True)


def test_deepspeed_is_told_of_sgd_and_of_a_share_of_warmup() -> None:
    chosen = make(job={"train": {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1}}, optimizer="sgd")
    made = json.loads(export(chosen, "deepspeed").files["deepspeed.json"])
    assert made["optimizer"] == {"type": "SGD", "params": {"lr": 2e-05, "weight_decay": 0.1, "momentum": 0.9}}
    assert made["zero_allow_untested_optimizer"] is True
    said = "\n".join(export(chosen, "accelerate").files.values())
    assert "SGD(lr=2e-05, momentum=0.9, weight_decay=0.1 on matrices, 0 on norms and biases)" in said
    said = "\n".join(export(make(job={"train": {"warmup_ratio": 0.015}}), "deepspeed").said)
    assert "linear with 1.5 % of warmup" in said


def keywords_of(text: str, name: str) -> dict[str, Any]:
    (call,) = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == name]
    return {keyword.arg: value_of(keyword.value) for keyword in call.keywords if keyword.arg}


def value_of(node: ast.expr) -> Any:
    """A literal, or the text of what is none."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def test_the_trl_script_says_the_job() -> None:
    chosen = make(
        job={
            "method": "lora",
            "lora": {"r": 8},
            "data": {"path": "rows.jsonl", "columns": {"question": "q", "answer": "a"}, "shuffle": False},
            "train": {"lr_scheduler_type": "constant", "warmup_ratio": 0.1, "max_steps": None, "num_train_epochs": 2},
        }
    )
    made = export(chosen, "trl")
    script = made.files["sft.py"]
    settings = keywords_of(script, "SFTConfig")
    schedule = {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 0.1, "num_train_epochs": 2}
    assert (schedule | {"train_sampling_strategy": "sequential", "bf16": True}).items() <= settings.items()
    assert "max_steps" not in settings and settings["model_init_kwargs"]["dtype"] == "float32"
    assert keywords_of(script, "LoraConfig")["r"] == 8
    assert "load_dataset('json', data_files='rows.jsonl', split=\"train\").rename_columns({'q'" in script
    assert set(made.files) == {"sft.py", "accelerate.yaml"}
    assert made.run == ["accelerate launch --config_file accelerate.yaml sft.py"]
    replicated = export(make(job={"method": "lora"}, layout={"dp_replicate": 2}), "trl")
    assert keywords_of(replicated.files["sft.py"], "SFTConfig")["model_init_kwargs"]["dtype"] == "bfloat16"
    assert set(replicated.files) == {"sft.py"}


def test_the_trl_script_reads_chats_with_tools_and_every_speaker_and_no_mark() -> None:
    tree = ast.parse(export(make(), "trl").files["sft.py"])
    kept: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.Assign | ast.FunctionDef)]
    script: dict[str, Any] = {}
    exec(compile(ast.Module(kept, []), "sft.py", "exec"), script)
    assert script["MARKS"] == MARKS and script["ROLES"] == {k: v for k, v in SPEAKERS.items() if v != "call"}
    call = {"role": "Assistant", "content": None, "tool_calls": [{"name": "f"}], "weight": 1}
    read = script["as_chat"]({"messages": [call], "tools": "[]"}, has_template=True)
    assert read == {"messages": [{"tool_calls": [{"name": "f"}], "role": "assistant", "content": None}], "tools": "[]"}
    turns = [{"from": "Human", "value": "q"}, {"from": "GPT", "value": "a"}]
    read = script["as_chat"]({"conversations": turns, "system": "s"}, has_template=True)["messages"]
    assert [(one["role"], one["content"]) for one in read] == [("system", "s"), ("user", "q"), ("assistant", "a")]
    with pytest.raises(ValueError, match="TRL trains every answer, and this message is marked as one that is not"):
        script["as_chat"]({"messages": [{**call, "train": False}]}, has_template=True)


def test_the_trl_script_has_arguments_that_trl_knows() -> None:
    if importlib.util.find_spec("trl") is None:
        pytest.skip("trl is not installed: pip install '.[peers]'")
    settings = keywords_of(export(make(), "trl").files["sft.py"], "SFTConfig")
    code = "import json, dataclasses, trl; print(json.dumps([f.name for f in dataclasses.fields(trl.SFTConfig)]))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout
    assert settings.keys() <= set(json.loads(said.splitlines()[-1]))


@pytest.mark.parametrize(
    ("layout", "set_to"),
    [
        ({"dp_shard": 2}, {"fsdp_reshard_after_forward": "always", "data_parallel_shard_degree": 2}),
        ({"dp_replicate": 2, "dp_shard": 2}, {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 2}),
        ({"dp_shard": 2, "tp": 2}, {"tensor_parallel_degree": 2, "data_parallel_shard_degree": 2}),
        ({"pp": 2}, {"pipeline_parallel_schedule": "1F1B", "pipeline_parallel_degree": 2, "local_batch_size": 8}),
    ],
)
def test_torchtitan_is_told_every_degree_in_keys_that_it_has(layout, set_to) -> None:
    text = export(make(layout=layout, hardware="4x H100-SXM"), "torchtitan").files["shardwise_titan.py"]
    (function,) = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    found: dict[str, Any] = {}
    for node in function.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            section, _, key = ast.unparse(node.targets[0]).removeprefix("config.").partition(".")
            assert key in TORCHTITAN[section].split() or not key, ast.unparse(node)
            found[key or section] = value_of(node.value)
    assert set_to.items() <= found.items()
    assert (found["global_batch_size"], found["seq_len"], found["steps"]) == (8, 1024, 100)
    assert found["model_spec"] == "model_registry('8B')"
    assert found["optimizer"].startswith("default_adamw(lr=2e-05, betas=(0.9, 0.999)")
    made = export(make(layout=layout, hardware="4x H100-SXM", job={"train": {"weight_decay": 0.1}}), "torchtitan")
    assert "torchtitan decays norms and biases too" in made.said


def test_axolotl_llama_factory_and_ms_swift_are_told_how_to_shard() -> None:
    chosen = make(layout={"dp_replicate": 2, "dp_shard": 2}, hardware="4x L4", gradient_checkpointing="full")
    made = yaml_of(export(chosen, "axolotl").files["axolotl.yaml"])
    assert (made["dp_shard_size"], made["dp_replicate_size"], made["fsdp_version"]) == (2, 2, 2)
    assert made["fsdp_config"]["activation_checkpointing"] is True and made["gradient_checkpointing"] is False
    assert (made["max_steps"], made["micro_batch_size"], made["sequence_len"]) == (100, 2, 1024)
    lora = {"method": "lora", "lora": {"r": 8, "target_modules": ["q_proj", "v_proj"]}}
    made = export(make(job=lora, offload="optimizer"), "llama-factory")
    settings, of_zero = yaml_of(made.files["llama_factory.yaml"]), json.loads(made.files["deepspeed.json"])
    assert (settings["finetuning_type"], settings["lora_rank"], settings["lora_target"]) == ("lora", 8, "q_proj,v_proj")
    assert of_zero["zero_optimization"] == {**STAGE_3, "offload_optimizer": HOST}
    assert json.loads(made.files["dataset_info.json"])["rows"]["file_name"] == "rows.jsonl"
    table = export(make(job={"data": {"path": "a/b.csv"}}), "llama-factory").files["dataset_info.json"]
    assert json.loads(table)["rows"]["file_name"] == "a/b.csv"
    assert made.run_with("to here") == [f"cd 'to here' && {line}" for line in made.run]  # it names files beside it
    swift = yaml_of(export(make(layout=zero(1)), "ms-swift").files["ms_swift.yaml"])
    assert (swift["deepspeed"], swift["torch_dtype"], swift["max_steps"]) == ("zero1", "bfloat16", 100)
    rows = {"path": {"path": "o/n", "name": "main", "split": "dev"}, "over_long": "drop", "shuffle": False}
    chosen = make(job={**lora, "lora": {"lora_alpha": 4, "modules_to_save": ["lm_head", "norm"]}, "data": rows})
    made, theirs = yaml_of(export(chosen, "axolotl").files["axolotl.yaml"]), export(chosen, "llama-factory")
    assert made["lora_modules_to_save"] == ["lm_head", "norm"] and made["datasets"][0]["name"] == "main"
    assert (made["excess_length_strategy"], made["curriculum_sampling"], made["lora_alpha"]) == ("drop", True, 4)
    assert yaml_of(theirs.files["llama_factory.yaml"])["additional_target"] == "lm_head,norm"
    where = {"hf_hub_url": "o/n", "subset": "main", "split": "dev"}
    assert where.items() <= json.loads(theirs.files["dataset_info.json"])["rows"].items()
    assert "rows longer than max_length are cut there; the job says over_long: drop" in theirs.said
    chosen = make(
        job={**lora, "lora": {"modules_to_save": ["norm"]}, "data": {"path": {**rows["path"], "split": "train"}}}
    )
    swift = yaml_of(export(chosen, "ms-swift").files["ms_swift.yaml"])
    assert (swift["modules_to_save"], swift["dataset"]) == (["norm"], ["o/n:main"])
    alone = yaml_of(export(make(layout={"dp_replicate": 2}), "ms-swift").files["ms_swift.yaml"])
    assert alone["torch_dtype"] == "float32" and "deepspeed" not in alone
    lines = export(make(hardware="2 x 4x H100-SXM", layout={"dp_shard": 8}), "llama-factory").run
    assert 'NNODES=2 NODE_RANK=1 MASTER_ADDR="$NODE_0" MASTER_PORT=29500 NPROC_PER_NODE=4 llamafactory-cli' in lines[1]
