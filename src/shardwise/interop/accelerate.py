"""Accelerate: the configuration that spreads a user's script by a plan, with FSDP2 if it shards"""

from typing import Any

from shardwise.interop.chosen import Chosen, Exported, as_yaml
from shardwise.interop.limits import left_to_the_script, memory_notes


def to_accelerate(chosen: Chosen) -> Exported:
    """accelerate.yaml, and the line that starts a script with it on each node."""
    said = ["the script train.py is yours", *memory_notes(chosen)]
    if chosen.execution.gathers_weights and chosen.execution.precision == "mixed":
        said.append("gradients are summed over GPUs in bfloat16 there, and in float32 here")
    if chosen.execution.gradient_checkpointing == "full" and not chosen.execution.gathers_weights:
        said.append("the plan computes blocks again in the backward: the script calls gradient_checkpointing_enable()")
    comment = [chosen.written, "The script says, for the same training:"]
    comment += [f"  {line}" for line in left_to_the_script(chosen)]
    comment.append(f"  gradients clipped to a norm of {chosen.job.train.max_grad_norm!r}: accelerator.clip_grad_norm_")
    text = as_yaml(config(chosen), comment=comment)
    return Exported(files={"accelerate.yaml": text}, said=said, run=launch_lines(chosen, "train.py"))


def config(chosen: Chosen) -> dict[str, Any]:
    """The keys of `accelerate config`."""
    execution, layout = chosen.execution, chosen.layout
    sharded = chosen.execution.gathers_weights
    data: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if sharded else "MULTI_GPU" if layout.world_size > 1 else "NO",
        "num_machines": chosen.nodes,
        "num_processes": layout.world_size,
        "mixed_precision": {"mixed": "bf16", "fp16": "fp16"}.get(execution.precision, "no"),
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if execution.compile:
        data["dynamo_config"] = {"dynamo_backend": "INDUCTOR", "dynamo_use_regional_compilation": True}
    if not sharded:
        return data
    data["fsdp_config"] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": layout.reshard_after_forward,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_offload_params": execution.parameters_on_host,
        "fsdp_activation_checkpointing": execution.gradient_checkpointing == "full",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_state_dict_type": "FULL_STATE_DICT",
    }
    if layout.dp_replicate > 1:
        sizes = {"dp_replicate_size": layout.dp_replicate, "dp_shard_size": layout.dp_shard}
        data["parallelism_config"] = {f"parallelism_config_{name}": size for name, size in sizes.items()}
    return data


def launch_lines(chosen: Chosen, script: str) -> list[str]:
    """`accelerate launch` on each node."""
    line, address = "accelerate launch --config_file accelerate.yaml", ' --main_process_ip "$NODE_0"'
    group = f" --machine_rank {{}}{address} --main_process_port 29500" * (chosen.nodes > 1)
    return chosen.on_each_node(lambda rank: f"{line}{group.format(rank)} {script}")
