"""A published row becomes a question to the planner: job, model, cluster and execution; or a reason why it does not."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from accuracy.differences import DifferenceOfRow, difference_of
from accuracy.naming import CATALOGUE, CONFIGS, GPUS, RECOMPUTE, SHARDING, first_match, lora_targets
from accuracy.rows import Published
from accuracy.stacks import STACKED, Stack, stack_of, under_deepspeed
from shardwise.catalog.config import shape_from_data
from shardwise.catalog.gpus import cluster_of, find_gpu
from shardwise.catalog.models import find_model
from shardwise.plan.rates import ATTENTION_BACKWARD
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.data import DataSpec
from shardwise.spec.job.keys import Job, LoraSpec, Method, TrainSpec
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Attention, Execution, LossKind, OptimizerName, Precision, Recompute
from shardwise.spec.model.shape import ModelShape

#: Nodes whose size the row does not say have as many GPUs.
_USUAL_NODE = 8
#: Shares of the peak.
_FIRST_FLASH, _FIRST_FLASH_OF_HOPPER = 0.37, 0.21
_METHODS: tuple[tuple[str, Method], ...] = (
    ("pretrain", "full"),
    ("full", "full"),
    ("qlora", "qlora"),
    ("lora", "lora"),
)
_SEVERAL = re.compile(r"(\d+) concurrent adapters")
_OPTIMIZERS: tuple[tuple[str, OptimizerName], ...] = (
    ("AdamW", "adamw"),
    ("Adam", "adamw"),
    ("decoupled_adamw", "adamw"),
    ("distributed fused Adam", "adamw"),
    ("fused AdamW", "adamw"),
    ("adamw_torch_fused", "adamw"),
    ("adamw_torch_8bit", "adamw_8bit"),
    ("adamw_bnb_8bit", "adamw_8bit"),
    ("adamw_8bit", "adamw_8bit"),
)
_PEFT_VARIANTS = ("bdlora", "mica", "lorafa", "dora")


class LeftOutError(Exception):
    """A row cannot be compared; the message says why, in words that many rows share."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row as the planner is asked about it.

    Attributes:
        difference: what the row's stack does otherwise than our trainer.
    """

    row: Published
    job: Job
    model: ModelShape
    cluster: Cluster
    execution: Execution
    difference: DifferenceOfRow


def case_of(row: Published) -> Case:
    """The question a row asks.

    Raises:
        LeftOutError: the row says too little, or something that is not forecast.
    """
    stack = stack_of(row)
    if stack.refused:
        raise LeftOutError(stack.refused)
    if row.grade not in ("A", "B"):
        raise LeftOutError("grade C: too little is stated")
    _refuse_unusual(row)
    model, cluster = _model(row), _cluster(row)
    if stack.first_flash:
        cluster = _of_first_generation(cluster)
    method, layout = _method(row), _layout(row, stack, num_gpus=cluster.num_gpus)
    micro, length = _stated(row, "micro_batch"), row.whole("seq_len") or stack.length or _stated(row, "seq_len")
    accumulation = row.whole("grad_accum", default=1) or 1
    execution = Execution(
        layout=layout,
        micro_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        gradient_checkpointing=_recompute(row, stack),
        offload=_offload(row),
        precision=_precision(row, stack, method=method),
        optimizer=_optimizer(row),
        loss=_loss(row, stack),
        attn_implementation=_attention(row, stack),
        compile=row.text("compile") == "yes" or stack.fused,
        mlp="chunked" if "MLP tiling" in row.text("notes") else "full",
    )
    return Case(
        row=row,
        job=_job(row, stack, model, method=method, length=length, batch=micro * accumulation * layout.data_world_size),
        model=model,
        cluster=cluster,
        execution=execution,
        difference=difference_of(row, stack, method=method, sharded=layout.dp_shard > 1, width=model.hidden_size),
    )


def _refuse_unusual(row: Published) -> None:
    notes, precision, optimizer = row.text("notes"), row.text("precision").lower(), row.text("optimizer").lower()
    if "fp8" in precision or "float8" in precision:
        raise LeftOutError("computes in 8 bits")
    if "[flag" in notes:
        raise LeftOutError("the printed layout or batch does not multiply out")
    if "proxy" in row.text("model") and row.text("arch_note") not in ("layers=126", "layers=64"):
        raise LeftOutError("a proxy with fewer layers")
    if "into backward" in optimizer or "in-backward" in optimizer or "in backward" in optimizer:
        raise LeftOutError("the optimizer steps inside backward")
    if notes.startswith("Async TP"):
        raise LeftOutError("slices of activations travel behind products")
    if "ZenFlow" in row.text("offload") or "muon" in optimizer or "lora-fa" in optimizer:
        raise LeftOutError("an optimizer that is not forecast")
    if not row.text("packing").startswith(("packed", "fixed", "dummy", "")) or "varies" in notes:
        raise LeftOutError("sequences of many lengths")
    if "dynamic padding" in row.text("packing") or "not packed" in row.text("packing"):
        raise LeftOutError("sequences of many lengths")
    if "padded" in row.text("packing"):
        raise LeftOutError("sequences of many lengths")
    if any(variant in row.text("method") for variant in _PEFT_VARIANTS):
        raise LeftOutError("a variant of LoRA that is not forecast")


def _model(row: Published) -> ModelShape:
    name = row.text("model").lower().partition(" (or ")[0]
    if name in CONFIGS:
        return shape_from_data(CONFIGS[name], file=name)
    if name not in CATALOGUE:
        raise LeftOutError(f"the model {row.text('model')} is not known")
    model = find_model(CATALOGUE[name], offline=True)
    return model if row.source in STACKED else _with_experts_as_modules(model)


def _with_experts_as_modules(model: ModelShape) -> ModelShape:
    """Until transformers 5, whose stacks are newer than these rows, each expert was a module of its own."""
    if not any(matrix.stacked for matrix in model.matrices):
        return model
    plain = (replace(m, stacked=False, adaptable=True) if m.stacked else m for m in model.matrices)
    return replace(model, matrices=tuple(plain))


def _cluster(row: Published) -> Cluster:
    name, num_gpus = row.text("gpu_type"), row.whole("n_gpus")
    if name not in GPUS:
        raise LeftOutError(f"the GPU is {name or 'not stated'}")
    if num_gpus is None:
        raise LeftOutError("the number of GPUs is not stated")
    catalogued, memory, bandwidth = GPUS[name]
    known = find_gpu(catalogued)
    gpu = replace(
        known.gpu,
        memory_bytes=memory or known.gpu.memory_bytes,
        memory_bytes_per_second=bandwidth or known.gpu.memory_bytes_per_second,
    )
    nodes = row.whole("n_nodes") or max(1, num_gpus // max(_USUAL_NODE, known.node_gpus))
    if num_gpus % nodes:
        raise LeftOutError("the GPUs do not divide over the nodes")
    cluster = cluster_of(replace(known, gpu=gpu), num_gpus=num_gpus // nodes, num_nodes=nodes)
    if "NVLink" in row.text("interconnect") and "no NVLink" in row.text("interconnect"):
        cluster = replace(cluster, node=replace(cluster.node, link=find_gpu("RTX-4090").link))
    return cluster


def _of_first_generation(cluster: Cluster) -> Cluster:
    """Attention by FlashAttention's first generation, as if it were measured: 25 to 40 % of the peak on an A100 (arXiv
    2307.08691, section 1), whose rate a Hopper has too. The shares are fitted to llm-foundry."""
    gpu = cluster.gpu
    share = _FIRST_FLASH_OF_HOPPER if gpu.name.startswith("H") else _FIRST_FLASH
    forward = {str(count): count / (share * gpu.dense_flops["bfloat16"]) for count in (10**9, 10**18)}
    ways = {"forward": forward, "backward": {count: ATTENTION_BACKWARD * one for count, one in forward.items()}}
    known = dict.fromkeys(("bfloat16", "float16"), ways)
    return replace(cluster, node=replace(cluster.node, gpu=replace(gpu, attention_seconds=known)))


def _method(row: Published) -> Method:
    found, method = first_match(row.text("method"), _METHODS)
    if not found or method is None:
        raise LeftOutError(f"method {row.text('method') or 'not stated'}")
    return method


def _layout(row: Published, stack: Stack, *, num_gpus: int) -> Layout:
    tp, pp, cp = (row.whole(axis, default=1) or 1 for axis in ("tp", "pp", "cp"))
    if (row.whole("ep", default=1) or 1) > 1:
        raise LeftOutError("expert parallel")
    degree, rest = divmod(num_gpus, tp * pp * cp)
    if rest:
        raise LeftOutError("the printed layout or batch does not multiply out")
    found, name = first_match(row.text("shard_strategy"), SHARDING)
    name = name if found else stack.sharding
    if degree > 1 and not name:
        raise LeftOutError("how several GPUs share the work is not stated")
    data = Layout() if degree == 1 else _data_layout(str(name), degree)
    schedule = "interleaved" if (row.whole("vp", default=1) or 1) > 1 else "1f1b"
    return replace(data, tp=tp, pp=pp, cp=cp, schedule=schedule)


def _data_layout(name: str, degree: int) -> Layout:
    return Layout.from_strategy(name, world_size=degree, gpus_per_node=_USUAL_NODE)


def _stated(row: Published, column: str) -> int:
    found = row.whole(column)
    if found is None:
        raise LeftOutError(f"{column} is not stated")
    return found


def _recompute(row: Published, stack: Stack) -> Recompute:
    words = row.text("activation_checkpointing") or stack.recompute
    found, kind = first_match(words, RECOMPUTE)
    if not found or kind is None:
        raise LeftOutError(f"recompute is {words or 'not stated'}")
    kinds: dict[str, Recompute] = {
        "full": "full",
        "selective": "selective",
        "none": "none",
        "offloaded": "offloaded",
    }
    if kind == "full" and "must lie in host memory" in row.text("notes"):
        return "offloaded"
    if "activation" not in row.text("offload"):
        return kinds[kind]
    if kind != "full":
        raise LeftOutError("activations are offloaded, and all are kept")
    return "offloaded"


def _offload(row: Published) -> str:
    words = row.text("offload")
    if words in ("", "none", "activation offloading", "full, checkpoints offloaded to CPU"):
        return "none"
    if words.startswith(("params to CPU (FSDP CPUOffload)", "params+optimizer CPU")):
        return "all"  # FSDP steps where its shards lie: on the CPU
    if words.startswith("optimizer CPU"):
        return "optimizer"
    raise LeftOutError(f"offload: {words}")


def _precision(row: Published, stack: Stack, *, method: Method) -> Precision:
    words, masters = row.text("precision"), row.text("master_weights")
    if words == "fp32":
        return "fp32"
    if method != "full":
        return "mixed" if under_deepspeed(row) else stack.adapters
    if stack.masters and stack.full:
        return stack.full
    if masters.startswith("none") or "pure" in words or words == "bf16-true":
        return "bf16"
    if masters.startswith("fp32"):
        return "mixed"
    if stack.full is None:
        raise LeftOutError("which types hold the weights is not stated")
    return stack.full


def _optimizer(row: Published) -> OptimizerName:
    words = row.text("optimizer")
    found, name = first_match(words, _OPTIMIZERS)
    if words and (not found or name is None):
        raise LeftOutError(f"the optimizer is {words}")
    return name or "adamw"


def _loss(row: Published, stack: Stack) -> LossKind:
    kernels = row.text("fused_kernels")
    if "liger" in kernels or "chunked" in kernels or "in chunks" in kernels:
        return "chunked"
    filled = row.text("config_filled_from").startswith("recipes/configs")
    return stack.filled_loss if filled and stack.filled_loss else stack.loss


def _attention(row: Published, stack: Stack) -> Attention:
    words = row.text("attention").lower()
    if words in ("", "sdpa", "sdpa (ring)", "transformers default (sdpa)"):
        return stack.blackwell if stack.blackwell and row.text("gpu_type").startswith("B") else stack.attention
    if "flashattention-2 backend" in words:
        return "flash_attention_2"
    if words.startswith("flash_attention_3"):
        return "flash_attention_3"
    if words.startswith(("flash", "sdpa flash")):
        return "sdpa" if stack.first_flash else "flash_attention_2"
    raise LeftOutError(f"attention: {words}")


def _job(row: Published, stack: Stack, model: ModelShape, *, method: Method, length: int, batch: int) -> Job:
    lora = None if method == "full" else _lora(row, stack, model)
    return Job(
        model=row.text("model"),
        # Packed here means joined and cut, without boundaries that attention would respect.
        data=DataSpec(max_length=length, packing=False),
        method=method,
        lora=lora,
        train=TrainSpec(global_batch_size=batch),
    )


def _lora(row: Published, stack: Stack, model: ModelShape) -> LoraSpec:
    r, targets = row.whole("lora_rank"), lora_targets(row.text("lora_targets"))
    if isinstance(targets, list):
        # One list serves all models of a source; PEFT passes over the names that a model does not have.
        there = {matrix.name.rpartition(".")[2] for kind in model.kinds for matrix in kind.matrices}
        targets = [name for name in targets if name in there or name in ("lm_head", "embed_tokens")]
    if r is None or not targets:
        raise LeftOutError("LoRA's rank or targets are not stated")
    # As many weights, gradients and states as one adapter of the sum of their ranks.
    several = _SEVERAL.search(row.text("lora_targets"))
    r *= int(several[1]) if several else 1
    saved = ["embed_tokens", "lm_head"] if "+ trainable wte,lm_head" in row.text("lora_targets") else []
    return LoraSpec(
        r=r,
        lora_alpha=row.number("lora_alpha") or float(r),
        lora_dropout=stack.lora_dropout,
        target_modules=targets if isinstance(targets, list) else "all-linear",
        modules_to_save=saved,
    )
