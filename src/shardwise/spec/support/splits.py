"""Which models are split in pipeline stages or tensor-parallel slices, by family or by build."""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import gcd
from typing import Any, Literal

from shardwise.spec.job.keys import Job
from shardwise.spec.model.shape import ModelShape

#: Families whose models are cut in stages as transformers plans it: between tokens and head they
#: have embedding, blocks and norm, and no more.
PLANNED_STAGES = (
    *("arcee", "cohere", "cohere2", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "granite"),
    *("helium", "internlm3", "llama", "ministral", "mistral", "olmo", "olmo2", "olmo3", "phi3", "qwen2", "qwen3"),
    *("seed_oss", "smollm3", "starcoder2"),
    *("deepseek_v2", "deepseek_v3", "glm4_moe", "gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe"),
)

#: Families whose blocks tensor parallelism slices, with the same result, by transformers' plans.
TENSOR_FAMILIES = (
    *PLANNED_STAGES,
    *("gpt_neox", "gptj", "granitemoe", "llama4_text", "nemotron", "olmoe", "phi", "phimoe"),
)

#: Families whose transformers' plans gather what a slice of a matrix gave, and slice what the next
#: reads: because parts are fused in one matrix, or a norm goes over all heads. Here neither is.
GATHERED = ("flex_olmo", "glm", "glm4", "olmo2", "olmo3", "olmo_hybrid", "phi3")

#: Families of the catalogue whose sequences are not cut in parts (context parallelism): their code
#: in transformers compares positions in attention itself, or caps its scores. Gemma 4's gradients
#: are the same in float64, and up to 3e-5 apart in float32.
NOT_IN_PARTS = ("bloom", "falcon", "gemma2", "gemma4_text", "gemma4_unified_text", "gpt_neo", "gptj", "mpt")

#: Families whose attention mask is made without positions, which tell packed documents apart.
MASKED_WITHOUT_POSITIONS = ("bloom", "falcon", "gpt_oss", "mpt", "opt")

#: Names of norms that read what a block's MLP made.
LAST_NORMS = ("post_feedforward_layernorm", "post_mlp_layernorm")


def splits(model: ModelShape, split: Literal["stages", "slices", "whole_stream"]) -> bool:
    """Whether a model's blocks can be split in a way: as its build was seen, or its family is."""
    if model.built is not None:
        return split in model.built
    return split == "stages" or (split == "slices" and model.family in TENSOR_FAMILIES)


def parts_of_stream(model: ModelShape, tp: int) -> int:
    """Into how many parts `tp` ranks split the residual stream between blocks."""
    return 1 if splits(model, "whole_stream") else tp


def has_one_key_head(config: Any) -> bool:
    """Whether blocks of a transformers configuration have a single head of keys, which all ranks of
    tensor parallelism have whole."""
    return config.to_dict().get("num_key_value_heads") == 1  # as an attribute it may be ambiguous


def style_of(name: str, plan: Mapping[str, str]) -> str:
    """What transformers' plan of tensor parallelism says of a module in a block; "": nothing."""
    return plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name), "")


def heads(model: ModelShape) -> dict[str, int]:
    """What tensor parallelism splits by whole heads or whole experts: name -> how many."""
    kinds = [{m.name.rpartition(".")[2]: m for m in kind.matrices} for kind in model.kinds if model.counted]
    read = [(kind.get("v_proj") or kind.get("k_proj"), kind.get("o_proj")) for kind in kinds]
    each = [keys.rows * model.num_attention_heads // o.columns for keys, o in read if keys and o]  # kinds may differ
    found = {"attention heads": model.num_attention_heads}
    if model.built is None or {model.num_key_value_heads, *each} != {1}:  # a single one is whole on all ranks
        found["key-value heads"] = gcd(model.num_key_value_heads, *each)
    if model.family == "codegen":  # its code has queries, keys and values of a quarter of all heads together
        found["groups of heads"] = 4
    if model.has_experts and not any(m.reads.startswith(("attention", "query", "key")) for m in model.sliced):
        found = {}
    counts = [matrix.count for matrix in model.sliced if matrix.stacked]
    return found | ({"experts of each block": gcd(*counts)} if counts else {})


def widths(model: ModelShape) -> dict[str, int]:
    """What else it splits."""
    found = [matrix.columns for matrix in model.sliced if matrix.reads == "mlp_product"]
    width = gcd(*found) if model.built else model.intermediate_size
    return {"elements of the MLP's width": width} if found else {}


def mlp_module(model: ModelShape) -> str | None:
    """The name in a block of a module that is the whole of a dense MLP; None if there is none."""
    matrices, of_mlp = [m for kind in model.kinds for m in kind.matrices], ("mlp_input", "mlp_product")
    mlps = {m.name.rpartition(".")[0] for m in matrices if m.reads in of_mlp}
    others = [m.name for m in matrices if m.reads not in of_mlp]
    name = next(iter(mlps), "")
    alone = len(mlps) == 1 and name and not any(other.startswith(f"{name}.") for other in others)
    return name if alone and not model.has_experts and not model.counted else None


def mlp_ends_block(model: ModelShape) -> bool:
    """Whether blocks of a model of the catalogue add what its MLP gives to the stream as it is."""
    normed = any(norm.name.endswith(LAST_NORMS) for kind in model.kinds for norm in kind.norms)
    return model.built is None and not normed


def most_slices(model: ModelShape) -> int:
    """The largest tp that slices a model evenly."""
    return gcd(*widths(model).values(), *heads(model).values())


def as_trained(job: Job, model: ModelShape) -> ModelShape:
    """A model without the dropout that a job switches off."""
    if not job.train.disable_dropout:
        return model
    return replace(model, layerdrop=0.0, drops_out=False)
