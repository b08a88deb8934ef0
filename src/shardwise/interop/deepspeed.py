"""DeepSpeed: the ZeRO configuration of a plan"""

import json
from collections.abc import Iterator
from typing import Any

from shardwise.interop.chosen import Chosen, Exported
from shardwise.interop.limits import left_to_the_script, memory_notes, zero_optimization


def to_deepspeed(chosen: Chosen) -> Exported:
    """deepspeed.json, and the line that starts a script with it."""
    said = ["the script train.py is yours, and hands deepspeed.json to deepspeed.initialize as `config`"]
    said += [f"the script says {line}" for line in left_to_the_script(chosen) if not line.startswith("optimizer")]
    if chosen.job.train.weight_decay:
        said.append("the script hands over norms and biases as a group of their own with weight_decay 0")
    if chosen.execution.gradient_checkpointing == "full":
        said.append("the plan computes blocks again in the backward: the script calls gradient_checkpointing_enable()")
    if chosen.execution.compile:
        said.append("the plan compiles each block: the script calls module.compile() on each, before initialize")
    text = json.dumps(config(chosen), indent=2) + "\n"
    cpu = "DS_ACCELERATOR=cpu " if chosen.on_cpu else ""
    run = [cpu + line for line in chosen.torchrun_lines("train.py")]
    return Exported(files={"deepspeed.json": text}, said=[*said, *memory_notes(chosen)], run=run)


def refusals(chosen: Chosen) -> Iterator[str]:
    """What else the trainer would do otherwise."""
    if chosen.execution.parameters_on_host and chosen.layout.strategy == "zero2":
        yield "DeepSpeed offloads weights in stage 3 only, and zero2 is stage 2; plan again with --set layout=fsdp"


def config(chosen: Chosen) -> dict[str, Any]:
    """DeepSpeed's keys. There is no `scheduler`: none of DeepSpeed's has transformers' rates."""
    execution = chosen.execution
    data: dict[str, Any] = {
        "train_batch_size": chosen.job.train.global_batch_size,
        "train_micro_batch_size_per_gpu": execution.micro_batch_size,
        "gradient_accumulation_steps": execution.gradient_accumulation_steps,
        "gradient_clipping": chosen.job.train.max_grad_norm,
        "optimizer": _optimizer(chosen),
        "zero_optimization": zero_optimization(chosen),
    }
    if execution.optimizer == "sgd":
        data["zero_allow_untested_optimizer"] = True
    if execution.precision == "mixed":  # weights and gradients in float32, products in bfloat16
        data["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
    return data


def _optimizer(chosen: Chosen) -> dict[str, Any]:
    """torch's own, so that a run starts without compiling; DeepSpeed's with states on the host."""
    train = chosen.job.train
    params: dict[str, Any] = {"lr": train.learning_rate, "weight_decay": train.weight_decay}
    if chosen.execution.optimizer == "sgd":
        return {"type": "SGD", "params": {**params, "momentum": train.momentum}}
    params |= {"betas": [train.adam_beta1, train.adam_beta2], "eps": train.adam_epsilon}
    if not chosen.execution.optimizer_on_host:
        params["torch_adam"] = True
    return {"type": "AdamW", "params": params}
