"""torchtitan: a configuration in Python, on top of one that torchtitan has of the model"""

from collections.abc import Iterator
from math import ceil

from shardwise.catalog.models import hub_id
from shardwise.interop.chosen import Chosen, Exported, script

#: Of a hub id: the module of torchtitan 0.3.0 that has the model, and its flavour there.
MODELS = {
    "meta-llama/Llama-3.2-1B": ("llama3", "1B"),
    "meta-llama/Llama-3.2-3B": ("llama3", "3B"),
    "meta-llama/Llama-3.1-8B": ("llama3", "8B"),
    "meta-llama/Llama-3.1-70B": ("llama3", "70B"),
    "meta-llama/Llama-3.1-405B": ("llama3", "405B"),
    **{f"Qwen/Qwen3-{size}": ("qwen3", size) for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B")},
}
#: The configuration that ours is made of. Those of other sizes differ in settings that are all made
#: anew here, but for `llama3_405b`, whose matrices are in float8.
BASES = {"llama3": "llama3_8b", "qwen3": "qwen3_32b"}

SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}
RECOMPUTES = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}


def to_torchtitan(chosen: Chosen) -> Exported:
    """shardwise_titan.py, and the line that trains it from beside it."""
    module, flavour = MODELS[hub_id(chosen.job.model)]
    base, assets = BASES[module], f"./assets/hf/{chosen.model.rpartition('/')[2]}"
    text = script("titan.py.txt").substitute(
        written=chosen.written,
        path=chosen.path,
        module=module,
        base=base,
        flavour=repr(flavour),
        assets=repr(assets),
        settings="\n".join(f"    config.{key} = {value}" for key, value in _settings(chosen)),
    )
    run = chosen.torchrun_lines("-m torchtitan.train --module shardwise_titan --config finetune")
    said = [
        "the module shardwise_titan is found where the command is run from, or on PYTHONPATH",
        f"the rows are those of torchtitan's own configuration {base}: set config.dataloader to yours",
        f"config.checkpoint loads the weights of {chosen.model} from {assets}, where "
        "scripts/download_hf_assets.py of torchtitan puts them",
        "written for torchtitan 0.3.0; its main branch counts batches in tokens, by other names",
        "torchtitan fills micro-batches with packed rows, and its first step has a rate above zero: losses are alike, "
        "and not the same",
        *["torchtitan decays norms and biases too"] * bool(chosen.job.train.weight_decay),
    ]
    return Exported(files={"shardwise_titan.py": text}, said=said, run=run)


def _settings(chosen: Chosen) -> Iterator[tuple[str, str]]:
    """What is set on torchtitan's Trainer.Config: the key, and its value as Python."""
    layout, execution, train = chosen.layout, chosen.execution, chosen.job.train
    length = chosen.job.data.max_length
    yield "parallelism.data_parallel_replicate_degree", repr(layout.dp_replicate)
    yield "parallelism.data_parallel_shard_degree", repr(layout.dp_shard)
    if layout.dp_shard > 1:
        yield "parallelism.fsdp_reshard_after_forward", repr("always" if layout.reshard_after_forward else "never")
    yield "parallelism.tensor_parallel_degree", repr(layout.tp)
    yield "parallelism.pipeline_parallel_degree", repr(layout.pp)
    if layout.pp > 1:
        yield "parallelism.pipeline_parallel_schedule", repr(SCHEDULES[layout.schedule])
        yield "parallelism.pipeline_parallel_microbatch_size", repr(execution.micro_batch_size)
    # Under pipelines one call of the schedule takes the micro-batches of a whole step.
    forwards = execution.gradient_accumulation_steps if layout.pp > 1 else 1
    yield "training.local_batch_size", repr(execution.micro_batch_size * forwards)
    yield "training.global_batch_size", repr(train.global_batch_size)
    yield "training.seq_len", repr(length)
    yield "training.steps", repr(chosen.steps)
    yield "training.max_norm", repr(train.max_grad_norm)
    yield "training.dtype", repr("bfloat16" if execution.precision == "bf16" else "float32")
    yield "training.mixed_precision_param", repr("float32" if execution.precision == "fp32" else "bfloat16")
    yield "training.enable_cpu_offload", repr(execution.parameters_on_host)
    yield "training.disable_cuda_graphs", repr(True)
    adam = f"lr={train.learning_rate!r}, betas=({train.adam_beta1!r}, {train.adam_beta2!r})"
    yield "optimizer", f"default_adamw({adam}, eps={train.adam_epsilon!r}, weight_decay={train.weight_decay!r})"
    kind = "linear" if train.lr_scheduler_type == "linear" else "cosine"
    steps = train.warmup_steps or ceil(train.warmup_ratio * (chosen.steps or 0))
    constant = ", min_lr_factor=1.0" if train.lr_scheduler_type.startswith("constant") else ""
    yield "lr_scheduler", f"LRSchedulersContainer.Config(warmup_steps={steps}, decay_type={kind!r}{constant})"
    yield "activation_checkpoint", RECOMPUTES[execution.gradient_checkpointing]
    yield "compile.enable", repr(execution.compile)
    yield "checkpoint.enable", repr(True)
    yield "checkpoint.initial_load_in_hf", repr(True)
    yield "checkpoint.last_save_model_only", repr(True)
    yield "checkpoint.last_save_in_hf", repr(True)
    save = train.save_dtype
    yield "checkpoint.export_dtype", repr(save if save in ("float32", "float16") else "bfloat16")


def refusals(chosen: Chosen) -> Iterator[str]:
    """What else the trainer would do otherwise."""
    layout = chosen.layout
    if chosen.on_cpu:
        yield f"torchtitan trains on GPUs, and hardware is {chosen.cluster.name}; plan for GPUs"
    if hub_id(chosen.job.model) not in MODELS:
        yield f"torchtitan has no configuration of {chosen.model} that is known here; it has {', '.join(MODELS)}"
    if chosen.steps is None:
        yield (
            "torchtitan counts steps and no epochs; write train.max_steps, or data.num_rows from which it is worked "
            "out (`shardwise data` counts them)"
        )
    if layout.pp > 1 and layout.schedule not in SCHEDULES:
        known = ", ".join(SCHEDULES)
        yield f"layout.schedule {layout.schedule} is not exported to torchtitan, which has others; write one of {known}"
