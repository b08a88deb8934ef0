"""What the published tables call things, and what these are here: models, GPUs, sharding, recompute, LoRA targets."""

from __future__ import annotations

from typing import Any, TypeVar

_Meaning = TypeVar("_Meaning")

#: A model's name in the tables (in lower case) -> its name in the catalogue.
CATALOGUE: dict[str, str] = {
    "mistralai/mistral-7b-v0.1": "mistral-7b",
    "mistralai/mistral-7b-v0.1 (from scenarios-orca.yaml; model column absent)": "mistral-7b",
    "thebloke/mistral-7b-v0.1-gptq": "mistral-7b",
    "mistral-7b": "mistral-7b",
    "meta-llama/meta-llama-3-8b": "llama-3-8b",
    "techxgenus/meta-llama-3-8b-gptq": "llama-3-8b",
    "llama-3-8b": "llama-3-8b",
    "llama-3-70b": "llama-3-70b",
    "llama-3.1-8b": "llama-3.1-8b",
    "llama-3.1-70b": "llama-3.1-70b",
    "llama-3.1-405b": "llama-3.1-405b",
    "llama-3.2-1b": "llama-3.2-1b",
    "llama-3.2-3b": "llama-3.2-3b",
    "meta-llama/llama-3.2-3b": "llama-3.2-3b",
    "llama-2-7b": "llama-2-7b",
    "llama-2-13b": "llama-2-13b",
    "llama-2-70b": "llama-2-70b",
    "ibm granite 7b (llama-2 arch)": "llama-2-7b",
    "nousresearch/llama-2-70b-hf": "llama-2-70b",
    "meta-llama/llama-2-70b-hf": "llama-2-70b",
    "llama-2-70b-chat-hf": "llama-2-70b",
    "thebloke/llama-2-70b-gptq": "llama-2-70b",
    "mistralai/mixtral-8x7b-instruct-v0.1": "mixtral-8x7b",
    "thebloke/mixtral-8x7b-instruct-v0.1-gptq": "mixtral-8x7b",
    "yi-34b": "yi-34b",
    "gemma-2b": "gemma-2b",
    "gemma-7b": "gemma-7b",
    "gemma-2-9b": "gemma-2-9b",
    "falcon-7b": "falcon-7b",
    "phi-2": "phi-2",
    "phi-3-mini-4k-instruct": "phi-3-mini",
    "tiny-llama": "tinyllama-1.1b",
    "qwen2.5-1.5b": "qwen2.5-1.5b",
    "qwen2.5-3b": "qwen2.5-3b",
    "gpt-2 124m": "gpt2",
    "gpt-2 1558m": "gpt2-xl",
    "gpt-2 large": "gpt2-large",
    "gpt-2 xl": "gpt2-xl",
    "qwen3-0.6b": "qwen3-0.6b",
    "qwen3-0.6b-base": "qwen3-0.6b",
    "qwen3-4b": "qwen3-4b",
    "qwen3-4b-instruct-2507": "qwen3-4b",
    "qwen3-8b": "qwen3-8b",
    "qwen3-32b": "qwen3-32b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen3-30b-a3b-instruct-2507": "qwen3-30b-a3b",
    "qwen3-235b-a22b-instruct-2507": "qwen3-235b-a22b",
}


def _qwen(hidden: int, inner: int, layers: int, heads: int, vocab: int) -> dict[str, Any]:
    """The first Qwen has its own code on the hub; its blocks are Qwen2's with as many key heads as query heads."""
    return {
        "model_type": "qwen2",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": vocab,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
    }


def _mpt(hidden: int, heads: int, layers: int) -> dict[str, Any]:
    """llm-foundry's configurations: vocabulary of 50,368, a learned table of positions, head tied."""
    return {
        "model_type": "mpt",
        "d_model": hidden,
        "n_heads": heads,
        "n_layers": layers,
        "expansion_ratio": 4,
        "vocab_size": 50368,
        "max_seq_len": 2048,
        "tie_word_embeddings": True,
    }


def _nemotron(hidden: int, inner: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "nemotron",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": hidden // heads,
        "vocab_size": 256000,
        "max_position_embeddings": 4096,
        "hidden_act": "relu2",
    }


def _llama(hidden: int, inner: int, layers: int, heads: int, kv_heads: int) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    }


#: Models that are not in the catalogue -> the keys of their config.json, as the source or the model's card states them.
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen-1.8b": _qwen(2048, 5504, 24, 16, 151936),
    "qwen-7b": _qwen(4096, 11008, 32, 32, 151936),
    "qwen-14b": _qwen(5120, 13696, 40, 40, 152064),
    "qwen-72b": _qwen(8192, 24576, 80, 64, 152064),
    "mpt-125m": _mpt(768, 12, 12),
    "mpt-350m": _mpt(1024, 16, 24),
    "mpt-760m": _mpt(1536, 12, 24),
    "mpt-1b": _mpt(2048, 16, 24),
    "mpt-3b": _mpt(2560, 20, 32),
    "mpt-7b": _mpt(4096, 32, 32),
    "mpt-13b": _mpt(5120, 40, 40),
    "mpt-30b": _mpt(7168, 56, 48),
    "mpt-70b": _mpt(8192, 64, 80),
    "nemotron4-15b": _nemotron(6144, 24576, 32, 48),
    "nemotron4-340b": _nemotron(18432, 73728, 96, 96),
    "llama-2-34b": _llama(8192, 22016, 48, 64, 8),
    "llamaconfig 1b (random init)": _llama(2048, 4096, 24, 16, 16),
    # Its window is null, so that attention over longer sequences is plain.
    "mistral-7b-v0.2": {**_llama(4096, 14336, 32, 32, 8), "max_position_embeddings": 32768},
    "ibm/powerlm-3b": {**_llama(2304, 9216, 40, 36, 36), "vocab_size": 49152, "tie_word_embeddings": True},
    # Its config.json on the Hub (PrimeIntellect/INTELLECT-3), a GLM-4.5-Air.
    "intellect-3": {
        "model_type": "glm4_moe",
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 46,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 1,
        "vocab_size": 151552,
        "max_position_embeddings": 131072,
    },
    "bigcode/gpt_bigcode-santacoder": {
        "model_type": "gpt_bigcode",
        "n_embd": 2048,
        "n_head": 16,
        "n_inner": 8192,
        "n_layer": 24,
        "n_positions": 2048,
        "vocab_size": 49280,
        "multi_query": True,
    },
}

#: GPU names of the tables -> (catalogue name, bytes of memory that differ or None, bytes per second that differ).
#: torchtitan states H100s with HBM2e of 96 GB: the memory of an H100 PCIe on SXM.
GPUS: dict[str, tuple[str, int | None, float | None]] = {
    "A100-80GB": ("A100-80GB", None, None),
    "A100-SXM4-80G": ("A100-80GB", None, None),
    "A100": ("A100-80GB", None, None),
    "A100-40GB": ("A100-40GB", None, None),
    "A100-SXM4-40GB": ("A100-40GB", None, None),
    "A100 40GB SMX": ("A100-40GB", None, None),
    "H100-80GB": ("H100-SXM", None, None),
    "H100": ("H100-SXM", None, None),
    "H100 80GB SXM": ("H100-SXM", None, None),
    "H100 SXM HBM2e 96GB (500W)": ("H100-SXM", 95 * 1024**3, 2.4e12),
    "H100 SXM HBM2e 94GB (lower TDP)": ("H100-SXM", 94 * 1024**3, 2.4e12),
    "GB200": ("GB200", None, None),
    "H200": ("H200", None, None),
    "B200": ("B200", None, None),
    "MI355X": ("MI355X", None, None),
    "RTX-A6000": ("RTX-A6000", None, None),
    "A10G": ("A10G", None, None),
    "A6000": ("RTX-A6000", None, None),
    "A5000 24GB": ("RTX-A5000", None, None),
    "A6000 Ada 48GB": ("RTX-6000-Ada", None, None),
    "RTX 4090": ("RTX-4090", None, None),
    "RTX 3090 (280W limit)": ("RTX-3090", None, None),
    "NVIDIA L40S": ("L40S", None, None),
    "V100-16GB": ("V100-16GB", None, None),
}

#: How `shard_strategy` begins -> the name here. The longer beginning stands first.
SHARDING: tuple[tuple[str, str], ...] = (
    ("NO_SHARD", "ddp"),
    ("DDP", "ddp"),
    ("ZeRO-1", "zero1"),
    ("distributed optimizer", "zero1"),
    ("SHARD_GRAD_OP", "zero2"),
    ("ZeRO-2", "zero2"),
    ("ZeRO-3", "fsdp"),
    ("FULL_SHARD", "fsdp"),
    ("FSDP2", "fsdp"),
    ("HYBRID_SHARD", "hsdp"),
)

#: How `activation_checkpointing` begins -> the name here; None where what it means is not forecast.
RECOMPUTE: tuple[tuple[str, str | None], ...] = (
    ("selective layer", None),
    ("selective (op)", "selective"),
    ("selective op", "selective"),
    ("selective (per op", "selective"),
    ("selective", None),
    ("full, checkpoints offloaded", "offloaded"),
    ("full", "full"),
    ("none", "none"),
)

ALL_LINEAR = "all-linear"
_LINEAR_WORDS = frozenset({"all linear", "all-linear", "all layers", "q,k,v,o,mlp,head", "q,v,o + mlp (8b config)"})
#: Short names in LoRA targets -> transformers'.
_SHORT = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj", "w1": "gate_proj", "w2": "up_proj"}
#: The first Qwen's attention matrix is fused, and its two output matrices share a name.
_QWEN_TARGETS = frozenset({"c_attn", "c_proj", "w1", "w2"})


def lora_targets(words: str) -> str | list[str]:
    """The targets as a job names them; an empty list where the source says nothing."""
    plain = words.partition(" + trainable")[0].partition(" (PEFT default)")[0].strip()
    if plain.lower() in _LINEAR_WORDS or set(plain.split(",")) == _QWEN_TARGETS:
        return ALL_LINEAR
    return [_SHORT.get(name.strip(), name.strip()) for name in plain.split(",") if name.strip()]


def first_match(words: str, table: tuple[tuple[str, _Meaning], ...]) -> tuple[bool, _Meaning | None]:
    """Whether a text begins with a name of the table, and what that stands for."""
    for prefix, meaning in table:
        if words.startswith(prefix):
            return True, meaning
    return False, None
