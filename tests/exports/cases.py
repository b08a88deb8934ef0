"""Jobs whose exports are put to the tools: one for each thing that a file can say otherwise."""

from dataclasses import dataclass
from typing import Any

LAUNCHERS = ("slurm", "kubernetes", "skypilot")
TRAINERS = ("axolotl", "llama-factory", "ms-swift")
TITAN = ("torchtitan",)
SCRIPTS = ("accelerate", "trl")

_LARGE: dict[str, Any] = {"model": "llama-3.1-8b", "train": {"offload": "optimizer"}}
_LARGEST: dict[str, Any] = {"model": "llama-3.1-405b", "train": {"global_batch_size": 64}}
_AGAIN = {"gradient_checkpointing": "full"}
_LORA = {"method": "lora", "lora": {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job, and the targets that it is exported to."""

    name: str
    job: dict[str, Any]
    targets: tuple[str, ...]


def _case(name: str, targets: tuple[str, ...], *, train: dict[str, Any] | None = None, **job: Any) -> Case:
    data = {"path": "rows.jsonl", "max_length": 4096, "num_rows": 64}
    stated = {"max_steps": 100, "global_batch_size": 16, **(train or {})}
    return Case(name=name, job={"model": "qwen3-0.6b", "data": data, "train": stated, **job}, targets=targets)


_GPUS = ("H100-SXM", "H100-PCIe", "A100-80GB", "H200", "B200", "MI300X", "GH200", "RTX-4090", "RTX-5090", "RTX-A6000")
_GPUS += ("RTX-6000-Ada", "RTX-PRO-6000-Blackwell", "L4", "T4", "V100-32GB")

CASES = (
    _case("one", (*LAUNCHERS, *TRAINERS, *TITAN, *SCRIPTS, "deepspeed"), hardware="H100-SXM"),
    _case("fsdp", (*LAUNCHERS, *TRAINERS, *TITAN, *SCRIPTS, "deepspeed"), hardware="2 x 8x H100-SXM", layout="fsdp"),
    _case("ddp", (*LAUNCHERS, *TRAINERS[1:], *TITAN, *SCRIPTS, "deepspeed"), hardware="8x H100-SXM", layout="ddp"),
    _case("lora", (*LAUNCHERS, *TRAINERS, *SCRIPTS), hardware="2x H100-SXM", layout="ddp", **_LORA),
    _case("again", (*TRAINERS, *TITAN), hardware="8x H100-SXM", layout="fsdp", train=_AGAIN),
    _case("zero1", ("llama-factory", "ms-swift", "deepspeed"), hardware="8x H100-SXM", layout="zero1"),
    _case("cosine", TRAINERS, hardware="2x L4", train={"lr_scheduler_type": "cosine", "warmup_ratio": 0.1}),
    _case("epochs", (*TRAINERS, *TITAN), hardware="2x L4", train={"max_steps": None, "num_train_epochs": 2}),
    _case("offload", ("slurm", "kubernetes", "deepspeed"), hardware="2x A100-80GB", layout="fsdp", **_LARGE),
    _case("product", TITAN, hardware="8x H100-SXM", layout="fsdp x tp"),
    _case("stages", TITAN, hardware="8x H100-SXM", layout={"dp_shard": 4, "pp": 2}),
    _case("llama", TITAN, hardware="64 x 8x H100-SXM", layout="fsdp x tp", **_LARGEST),
    *(_case(f"gpu-{name}", ("kubernetes", "skypilot"), hardware=f"1x {name}") for name in _GPUS),
)
