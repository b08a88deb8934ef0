"""What other programs do with adapters and merged models: one table for `train`, `merge` and
docs/howto/adapter.md.

Sources: vLLM 0.32 `vllm/config/lora.py` and `vllm/lora/peft_helper.py`; llama.cpp
`convert_lora_to_gguf.py`.
"""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

VLLM, LLAMA_CPP = "vLLM 0.32", "llama.cpp of November 2026"

#: The values that `--max-lora-rank` takes.
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)

Config = Mapping[str, Any]


def rank_of(config: Config) -> int:
    """The largest rank of an adapter's matrices, PEFT's pattern of ranks included."""
    pattern: dict[str, int] = config.get("rank_pattern") or {}
    return max([config.get("r", 0), *pattern.values()])


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of adapter. `has`: whether an adapter_config.json is of it; `vllm`, `llama_cpp`: why
    it is to be merged first, or None where it is taken as it is; `options`: of vLLM then."""

    name: str
    has: Callable[[Config], bool]
    vllm: str | None = None
    llama_cpp: str | None = None
    options: str = ""


_BOTH = ("vllm", "llama_cpp")

KINDS = (
    Kind(name="LoRA, QLoRA", has=lambda _: True),
    Kind(
        name="rsLoRA",
        has=lambda config: bool(config.get("use_rslora")),
        llama_cpp="takes rsLoRA sqrt(r) times too weakly, in silence",
    ),
    Kind(name="DoRA", has=lambda config: bool(config.get("use_dora")), **dict.fromkeys(_BOTH, "refuses DoRA")),
    Kind(
        name="`modules_to_save`",
        has=lambda config: bool(config.get("modules_to_save")),
        **dict.fromkeys(_BOTH, "refuses modules_to_save"),
    ),
    Kind(
        name="stacked experts",
        has=lambda config: bool(config.get("target_parameters") or config.get("rank_pattern")),
        llama_cpp="refuses adapters of stacked experts",
        options="--enable-mixed-moe-lora-format",
    ),
    Kind(name="a rank above 512", has=lambda config: rank_of(config) > RANKS[-1], vllm="takes ranks up to 512"),
)

#: Type of weights -> what llama.cpp calls it; unasked, it converts float32 to float16.
OUTTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def adapter_lines(
    config: Config, *, final: str, base: str, merge: str, dtype: str | None, stops: list[str]
) -> list[str]:
    """How an adapter is used elsewhere: commands, or that it is to be merged first. `config`:
    adapter_config.json; `final`, `base`: folder of the adapter, and folder or hub id of its base;
    `dtype`: of the base; `stops`: trained ends of answers, at which the base does not stop."""
    kinds = [kind for kind in KINDS if kind.has(config)]
    rank = next((value for value in RANKS if value >= rank_of(config)), RANKS[-1])
    words = ["vllm serve", shlex.quote(base), "--enable-lora --lora-modules", shlex.quote(f"mine={final}")]
    words += [f"--max-lora-rank {rank}", *(kind.options for kind in kinds if kind.options)]
    words += ["--dtype bfloat16"] if dtype == "float32" else []  # its kernels for adapters have no float32
    words += [f"--generation-config {shlex.quote(final)}"] if stops else []
    python = f"python llama.cpp/convert_lora_to_gguf.py {shlex.quote(final)} --base {shlex.quote(base)}"
    lines = [
        _line(VLLM, " ".join(words), [kind.vllm for kind in kinds if kind.vllm], merge),
        _line(LLAMA_CPP, f"{python} --outfile mine.gguf", [kind.llama_cpp for kind in kinds if kind.llama_cpp], merge),
    ]
    if stops:
        ends = f"  trained answers end in {', '.join(stops)}, at which the base does not stop:"
        lines += [f"{ends} `shardwise chat`, {VLLM} by the", "  option above and merged models do; name it to others"]
    return lines


def _line(engine: str, command: str, reasons: list[str], merge: str) -> str:
    return f"  {command}    # {engine}" if not reasons else f"  merge first: {merge}    # {engine} {', '.join(reasons)}"


def model_lines(folder: str, *, dtype: str | None, stops: list[str]) -> list[str]:
    """How a whole model is used elsewhere, in its type; `stops`: as in `adapter_lines`."""
    kept = " --dtype float32" if dtype == "float32" else ""
    outtype = f" --outtype {OUTTYPES[dtype]}" if dtype in OUTTYPES else ""
    gguf = f"python llama.cpp/convert_hf_to_gguf.py {shlex.quote(folder)} --outfile model.gguf{outtype}"
    ends = f"  answers end in {', '.join(stops)}: generation_config.json stops at it, as the base did not"
    lines = [f"  vllm serve {shlex.quote(folder)}{kept}    # {VLLM}", f"  {gguf}    # {LLAMA_CPP}"]
    return [*lines, *([ends] if stops else [])]
