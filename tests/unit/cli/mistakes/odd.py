"""Configurations and jobs that nobody expects: drawn, huge, tiny, odd, broken or hostile."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.catalog.families.known import FAMILIES, TEXT_PARTS

Draw = random.Random

#: In the place of any value of a configuration or a job.
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, -(10**9), 2**31, 2**63, 10**30, 0.5, 1e308, -0.0, 3.0),
    *("", "8", "auto", "NaN", "sdpa", "\u202eabc", "x" * 5000, "a\x00b", "../../etc/passwd", "${HOME}"),
    *([], [1, 2], [[]], {}, {"rope_type": "yarn", "factor": -1}, [None], float("nan"), float("inf"), -float("inf")),
)
WIDTHS = (1, 2, 3, 7, 8, 24, 64, 80, 96, 128, 1000, 4096, 5120, 8192, 16384, 10**6, 10**8)
COUNTS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 25, 32, 40, 64, 71, 128, 1000)
SIZES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("hidden_size", "intermediate_size"), WIDTHS),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), COUNTS[:12]),
    "num_hidden_layers": COUNTS,
    "vocab_size": (1, 2, 97, 32000, 50257, 128256, 262208, 10**7, 10**8),
    "max_position_embeddings": (1, 2048, 131072, 10**8),
    "num_experts_per_tok": (1, 2, 8, 100),
    "tie_word_embeddings": (True, False),
    "sliding_window": (None, 1, 4096, 10**8),
}
LENGTHS = (1, 2, 7, 8, 127, 512, 1024, 4096, 131072, 10**6, 10**9, 10**15)
HARDWARE = (
    *("1x RTX-3060", "1x T4", "H200", "2x RTX-4090", "3x L4", "4x RTX-6000-Ada", "5x V100-16GB", "7x A10G"),
    *("8x H100-SXM", "8x MI300X", "2 x 8x A100-80GB", "3 x 3x L40S"),
    *("cpu", "cpu:2", "cpu:4", "cpu:7"),
)
#: Rare: clusters of thousands, asked for a stated layout alone, and hardware that is none.
CLUSTERS = ("4 x 8x H200", "8 x 8x H100-SXM", "1000 x 8x H100-SXM", "7919x A100-80GB", "125 x 64x B200")
CLUSTERS += ("2000 x 4x GB200",)
NO_HARDWARE = ("", "0x H100", "9999999x H100-SXM", "4x", "cpu:0", "cpu:99999", "8x Wonder-9000", "-1x L4", "4x4x4x L4")
AXES = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")


@dataclass(frozen=True, kw_only=True)
class Case:
    """The bytes of a config.json, a job as plain data, and how its plan is to be shown."""

    config: bytes
    job: dict[str, Any]
    shown: tuple[str, ...]


def odd_case(seed: int) -> Case:
    """The same case for the same seed, whatever else is drawn."""
    draw = Draw(seed)
    shown = draw.choice([("--json",)] * 7 + [(), ("--timeline",), ("--html", "page.html")])
    return Case(config=_config_bytes(draw), job=_job(draw), shown=shown)


def open_case(seed: int) -> Case:
    """A case whose hardware is open, or one of whose values is asked for."""
    draw = Draw(f"open {seed}")
    config, job = _config_bytes(draw), _job(draw)
    if draw.random() < 0.5:
        job["hardware"] = draw.choice(["any", "any", ", ".join(draw.sample(HARDWARE[:12], draw.randint(2, 5)))])
        return Case(config=config, job=job, shown=("--json",))
    unknown = draw.choice(["max_length", "micro_batch_size", "lora.r", "gpus", "gpus", "colour"])
    return Case(config=config, job=job, shown=("--json", "--solve", unknown))


def _config_bytes(draw: Draw) -> bytes:
    """Of the text of a configuration; one in ten is no JSON, or JSON of something else."""
    text = json.dumps(_config(draw)).encode()
    broken = [text[: len(text) // 2], draw.randbytes(200), b"\xef\xbb\xbf" + text, b"[" * 10**5, b"[]", b"NaN"]
    return draw.choice(broken) if draw.random() < 0.1 else text


def _config(draw: Draw) -> dict[str, Any]:
    """A configuration of a known family, of any size, with some of its values replaced."""
    kind = draw.choice(sorted({*FAMILIES, *TEXT_PARTS}))
    config = _of_family(draw, TEXT_PARTS[kind][0] if kind in TEXT_PARTS else kind)
    for _ in range(draw.choice([*[0] * 8, 1, 1, 2, 5])):
        key = draw.choice([*config, "rope_scaling", "layer_types", "torch_dtype", "quantization_config"])
        config[key] = draw.choice([*ODD_VALUES, [config.get(key)]])
    return {"model_type": kind, "text_config": config} if kind in TEXT_PARTS and draw.random() < 0.9 else config


def _of_family(draw: Draw, kind: str) -> dict[str, Any]:
    family = FAMILIES[kind]
    config = {"model_type": kind, **{family.keys.get(key, key): value for key, value in family.defaults.items()}}
    if draw.random() < 0.3:
        return config  # the family's own size
    heads, head_dim = draw.choice(COUNTS[:13]), draw.choice([1, 2, 8, 64, 80, 128, 256])
    sizes = {key: draw.choice(values) for key, values in SIZES.items()}
    sizes |= {"num_attention_heads": heads, "head_dim": head_dim}
    sizes["num_key_value_heads"] = draw.choice([n for n in range(1, heads + 1) if heads % n == 0])
    if draw.random() < 0.9:
        sizes["hidden_size"] = heads * head_dim
    config.update({family.keys.get(key, key): value for key, value in sizes.items() if key in family.defaults})
    return config


def _job(draw: Draw) -> dict[str, Any]:
    job: dict[str, Any] = {"model": "config.json", "hardware": draw.choice(HARDWARE)}
    job["method"] = draw.choice(["full", "full", "lora", "lora", "qlora"])
    job["goal"] = draw.choice(["fastest", "fastest", "cheapest", "fewest-gpus"])
    job["data"] = {"max_length": draw.choice(LENGTHS), "packing": draw.random() < 0.2}
    job["train"] = {"global_batch_size": draw.choice(BATCHES), **_picked(draw, TRAIN, share=0.15)}
    if job["method"] != "full" and draw.random() < 0.5:
        job["lora"] = _picked(draw, LORA, share=1.0)
    if draw.random() < 0.35:
        job["layout"] = _layout(draw)
        if draw.random() < 0.3:
            job["hardware"] = draw.choice(CLUSTERS)
    if draw.random() < 0.4:
        job["data"]["num_rows"] = draw.choice([1, 7, 1000, 10**9, 10**15])
    if draw.random() < 0.03:
        job["hardware"] = draw.choice(NO_HARDWARE)
    if draw.random() < 0.07:
        below = draw.choice([job, job["data"], job["train"]])
        below[draw.choice(list(below))] = draw.choice(ODD_VALUES)
    if job.get("hardware") is None:
        job["hardware"] = HARDWARE[0]  # left out, it is a question about every GPU there is
    return job


BATCHES = (1, 2, 3, 8, 60, 64, 1000, 10**4, 10**6, 10**9)
TRAIN: dict[str, tuple[Any, ...]] = {
    "precision": ("mixed", "bf16", "fp16", "fp32"),
    "optimizer": ("adamw", "adamw_8bit", "sgd", "adafactor"),
    "offload": ("none", "parameters", "optimizer", "all"),
    "loss": ("full", "chunked"),
    "gradient_checkpointing": ("none", "selective", "full"),
    "attn_implementation": ("sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention"),
    "compile": (True, False, "auto"),
    "micro_batch_size": (1, 2, 3, 64, 10**15),
    "max_steps": (1, 10**15),
    "num_train_epochs": (1e-9, 0.5, 3.0, 1e6, 1e308),
}
LORA: dict[str, tuple[Any, ...]] = {
    "r": (1, 8, 16, 1000, 10**6, 10**15),
    "use_dora": (True, False, False),
    "lora_dropout": (0.0, 0.1),
    "target_modules": ("all-linear", "all-linear", ["q_proj"], ["q_proj", "v_proj"], ["nothing_such"], []),
    "modules_to_save": ([], [], [], [], ["lm_head"], ["embed_tokens", "lm_head"], ["nothing_such"]),
}


def _picked(draw: Draw, table: dict[str, tuple[Any, ...]], *, share: float) -> dict[str, Any]:
    return {key: draw.choice(values) for key, values in table.items() if draw.random() < share}


def spoiled(value: Any, dice: Draw, *, odd: Sequence[Any]) -> Any:
    """The same JSON with one value, anywhere, in another's place or missing."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        key = dice.choice(sorted(value))
        if dice.random() < 0.1:
            return {name: below for name, below in value.items() if name != key}
        return {**value, key: spoiled(value[key], dice, odd=odd)}
    if isinstance(value, list) and value and dice.random() < 0.9:
        at = dice.randrange(len(value))
        return [*value[:at], spoiled(value[at], dice, odd=odd), *value[at + 1 :]]
    return dice.choice(odd)


def _layout(draw: Draw) -> str | dict[str, Any]:
    if draw.random() < 0.5:
        return draw.choice(["mp", "ddp", "zero1", "zero2", "fsdp", "hsdp", "tp", "pp", "cp"])
    product: dict[str, Any] = {axis: draw.choice([1, 2, 3, 4, 8, 64]) for axis in draw.sample(AXES, 2)}
    if product.get("dp_shard", 1) > 1 and draw.random() < 0.3:
        product["zero_stage"] = draw.choice([1, 2, 3])
    if product.get("pp", 1) > 1:
        product["schedule"] = draw.choice(["1f1b", "gpipe", "interleaved", "zero_bubble", "sequential"])
    return product
