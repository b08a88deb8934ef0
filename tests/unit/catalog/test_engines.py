"""What is said of an adapter's use elsewhere, and that the page says the same."""

from pathlib import Path
from typing import Any

import pytest

from shardwise.catalog.engines import KINDS, LLAMA_CPP, VLLM, adapter_lines, model_lines, rank_of

PAGE = Path(__file__).parents[3] / "docs/howto/adapter.md"
MERGE = "  merge first: shardwise merge run    # "


def _said(config: dict[str, Any], **options: Any) -> list[str]:
    given = {"final": "run/final", "base": "org/base", "merge": "shardwise merge run", "dtype": "bfloat16", "stops": []}
    return adapter_lines({"r": 8, **config}, **{**given, **options})


@pytest.mark.parametrize(
    ("config", "vllm", "llama_cpp"),
    [
        ({}, " --max-lora-rank 8    # vLLM 0.32", " --outfile mine.gguf    # llama.cpp"),
        ({"r": 24}, " --max-lora-rank 32    #", "--outfile mine.gguf"),
        ({"r": 257}, " --max-lora-rank 320    #", "--outfile mine.gguf"),
        ({"r": 600}, MERGE + "vLLM 0.32 takes ranks up to 512", "--outfile mine.gguf"),
        ({"use_rslora": True}, " --max-lora-rank 8", MERGE + "llama.cpp of November 2026 takes rsLoRA sqrt(r) times"),
        ({"use_dora": True}, MERGE + "vLLM 0.32 refuses DoRA", "refuses DoRA"),
        ({"modules_to_save": ["lm_head"]}, MERGE + "vLLM 0.32 refuses modules_to_save", "refuses modules_to_save"),
        (
            {"target_parameters": ["experts.gate_up_proj"], "rank_pattern": {"gate_up_proj": 16}},
            " --max-lora-rank 16 --enable-mixed-moe-lora-format    #",
            "refuses adapters of stacked experts",
        ),
    ],
)
def test_the_lines_for_an_adapter_are_finished_or_say_to_merge_first(config, vllm, llama_cpp) -> None:
    first, second = _said(config)
    assert vllm in first and llama_cpp in second
    assert first.startswith((MERGE, "  vllm serve org/base --enable-lora --lora-modules mine=run/final"))


def test_the_lines_say_type_and_stop_token() -> None:
    served, _, *stop = _said({}, dtype="float32", stops=["<|im_end|>"])
    assert served.split("    #")[0].endswith(" --dtype bfloat16 --generation-config run/final")
    assert stop[0].startswith("  trained answers end in <|im_end|>, at which the base does not stop: `shardwise chat`,")
    assert model_lines("a b", dtype="float32", stops=["</s>"]) == [
        "  vllm serve 'a b' --dtype float32    # vLLM 0.32",
        f"  python llama.cpp/convert_hf_to_gguf.py 'a b' --outfile model.gguf --outtype f32    # {LLAMA_CPP}",
        "  answers end in </s>: generation_config.json stops at it, as the base did not",
    ]
    assert "--dtype" not in model_lines("m", dtype="bfloat16", stops=[])[0]


def test_the_page_has_the_same_table() -> None:
    def cell(reason: str | None, options: str = "") -> str:
        return f"merge first: {reason}" if reason else f"adapter, with `{options}`" if options else "adapter"

    rows = [f"| {kind.name} | {cell(kind.vllm, kind.options)} | {cell(kind.llama_cpp)} |" for kind in KINDS]
    table = "\n".join([f"| adapter | {VLLM} | {LLAMA_CPP} |", "|---|---|---|", *rows])
    assert f"\n\n{table}\n\n" in PAGE.read_text(encoding="utf-8")


def test_the_rank_is_that_of_the_largest_pattern() -> None:
    assert rank_of({"r": 8, "rank_pattern": {"a": 16, "b": 4}}) == 16
