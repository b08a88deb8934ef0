"""What each published stack does that a job file does not say, and where it differs from our trainer; by source.

Every entry is a setting that the source or its repository states, or a fact about code that is public. What these facts
are worth in bytes stands in `differences`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from accuracy.rows import Published
from shardwise.spec.layout.execution import Attention, LossKind, Precision


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One source's software.

    Attributes:
        adapters: types of a LoRA run; PEFT promotes adapters to float32, which is `mixed`, unless told not to.
        full: types of full training, where the row does not say.
        copies: of what it updates, that AdamW over lists of tensors makes: two in torch 2.0, then one; fused: none.
        steps: the run takes an optimizer step at all.
        lora_dropout: as the scripts set it.
        attention: where the row does not say; `blackwell`: on those GPUs, where that is another.
        recompute: where the row does not say.
        sharding: where the row does not say, on more than one GPU.
        loss: `chunked` where the head and the loss are fused or run in chunks.
        filled_loss: likewise, in rows whose settings were filled from the source's configurations.
        fsdp1: sharding is FSDP's first form, whose hooks hold more where weights are frozen.
        masters: `full` is of what each rank holds whole, and optimizers keep float32 masters and moments beside it.
        tile: tokens and words of the buffer of a loss that is made in tiles.
        loads_float32: frozen weights are in float32 too.
        slices_loss: under tensor parallelism each rank has its slice of the logits, in PyTorch's loss for that.
        every_second_product: selective recompute keeps every second matrix product only.
        first_flash: attention is FlashAttention's first generation.
        fused: norms, rotary embeddings and activations are kernels of their own, as if blocks were compiled.
        hides_slices: slices of activations travel behind matrix products.
        own_loss: of the model's own code, which leaves logits in 16 bits where nothing is autocast:
            under DeepSpeed.
        length: of rows, where the table does not say: its configurations'.
        refused: why no row of this source is compared.
    """

    adapters: Precision = "mixed"
    full: Precision | None = None
    copies: int = 1
    steps: bool = True
    lora_dropout: float = 0.0
    attention: Attention = "sdpa"
    blackwell: Attention | None = None
    recompute: str = ""
    sharding: str = ""
    loss: LossKind = "full"
    filled_loss: LossKind | None = None
    fsdp1: bool = False
    masters: bool = False
    tile: tuple[int, int] = (0, 0)
    loads_float32: bool = False
    slices_loss: bool = False
    every_second_product: bool = False
    first_flash: bool = False
    fused: bool = False
    hides_slices: bool = False
    own_loss: bool = False
    length: int | None = None
    refused: str = ""


#: Full training of transformers' trainer on one GPU: autocast over weights that were loaded in 16 bits.
_HUGGING_FACE = Stack(full="bf16")

#: Its own list of SDPA's kernels begins with FlashAttention, and with cuDNN on Blackwell alone (models/attention.py).
_TORCHTITAN = Stack(
    full="mixed", every_second_product=True, slices_loss=True, attention="flash_attention_2", blackwell="sdpa"
)

#: Transformer Engine's attention is cuDNN's on Hopper; its collectives overlap products (`tp_comm_overlap` of NeMo's
#: recipes). Weights are in 16 bits on each rank and never cast, the product of a weight's gradient adds it to those of
#: the micro-batches before (`gradient_accumulation_fusion`), and float32 masters and moments are sharded.
_MEGATRON = Stack(full="bf16", masters=True, copies=0, fused=True, hides_slices=True)

#: What dgxc-benchmarking calls hf-*: PEFT on transformers' trainer, under FSDP's first form, with the flash kernel that
#: SDPA had in the container of that release (24.02).
_PEFT_UNDER_FSDP1 = Stack(full="bf16", fsdp1=True, attention="flash_attention_2")

STACKS: dict[str, Stack] = {
    "fms-acceleration": Stack(full="bf16", attention="flash_attention_2", fsdp1=True),
    # Adapters have the type of what they adapt, and GPTQ's models are not widened (peft 0.6.2, tuners/lora/layer.py and
    # utils/other.py; its README asks for peft below 0.8). Full training is taken to hold float32 weights.
    # QWenLMHeadModel.forward of modeling_qwen.py hands logits to CrossEntropyLoss without a cast.
    "qwen-readme": Stack(
        adapters="bf16", full="mixed", copies=2, lora_dropout=0.05, attention="flash_attention_2", own_loss=True
    ),
    "fsdp_qlora": Stack(adapters="bf16", lora_dropout=0.1, fsdp1=True),
    "torchtitan-202412": _TORCHTITAN,
    "torchtitan-7a04053a": _TORCHTITAN,
    "torchtitan-asyncTP-202506": replace(_TORCHTITAN, length=8192),
    "torchtitan-docs-perf-2024": _TORCHTITAN,
    # Its configurations (recipes/configs) name LinearCrossEntropyLoss, which works in chunks.
    "torchtune-readme": Stack(full="bf16", adapters="bf16", copies=0, filled_loss="chunked"),
    "torchtune-docs": Stack(full="bf16", adapters="bf16", copies=0),
    "litgpt-config-hub": Stack(full="bf16", adapters="bf16", lora_dropout=0.05),
    # Its tables are older than FlashAttention-2 (their page awaits torch 2.0).
    "llm-foundry": Stack(full="mixed", first_flash=True),
    "dgxc-benchmarking": _MEGATRON,
    "dgxc-benchmarking-logs": replace(_MEGATRON, recompute="none"),
    "fms-fsdp": Stack(full="mixed"),
    # The post names no strategy by size; the repository it describes shards the whole model, from 34B on certainly.
    "pytorch-blog-fsdp-2024-03": Stack(full="mixed", sharding="fsdp"),
    "peft-docs": _HUGGING_FACE,
    "hf-blog-ram-efficient-fsdp": Stack(full="mixed"),
    "hf-blog-ds-to-fsdp": Stack(full="mixed", recompute="full"),
    "deepspeed-zenflow": Stack(full="mixed"),
    # FSDP2 and torch.compile of its own blocks; the head is fused with the loss in the RL trainer; `optimization_dtype`
    # of its trainer's ModelConfig is float32, for the frozen base too.
    "prime-rl-bench": Stack(full="mixed", adapters="mixed", copies=0, loads_float32=True),
    "torchtitan-commits-2026": _TORCHTITAN,
    "trl-1m-2026": Stack(full="bf16", copies=0, tile=(4096, 32768)),
    "nemo-automodel-ac": Stack(full="bf16"),
    "scicom-ddp-2025": Stack(full="bf16", copies=0),
    "fsdp_qlora-nb": Stack(refused="memory right after a forward, no peak of a step"),
    "hf-transformers-perf": Stack(refused="BERT is no causal language model"),
    "llm.c": Stack(refused="CUDA code of its own, without PyTorch's allocator"),
}


#: Targets of `plan --for` -> sources that ran them, or what they stand on; `under_deepspeed` tells rows apart.
TARGETS: dict[str, tuple[str, ...]] = {
    "accelerate": ("fms-acceleration", "peft-docs", "qwen-readme"),
    "llama-factory": ("qwen-readme",),
    "torchtitan": ("torchtitan-202412", "torchtitan-7a04053a", "torchtitan-commits-2026"),
    "trl": ("trl-1m-2026",),
}

#: Sources whose experts are stacked and multiplied by one kernel.
STACKED = ("prime-rl-bench", "torchtitan-commits-2026")


def under_deepspeed(row: Published) -> bool:
    """Whether transformers' Trainer had DeepSpeed's engine, as LLaMA-Factory has it: in 16 bits, of
    the repository's finetune/ds_config_zero2.json and zero3.json."""
    return stack_of(row).own_loss and "DeepSpeed" in row.text("framework")


def stack_of(row: Published) -> Stack:
    """The source's stack; a source that is not known has transformers' habits."""
    if row.text("framework").startswith("HF PEFT"):
        return _PEFT_UNDER_FSDP1
    return STACKS.get(row.source, _HUGGING_FACE)
