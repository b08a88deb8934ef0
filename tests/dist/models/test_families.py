"""A slice of docs/families.md is true; more families train as transformers does, each way."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tools.families import SHOWN, TABLE, page
from transformers import AutoModelForCausalLM

from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import RunDirectory
from tests.dist import every_family
from tests.dist.cells import LAYOUTS, composed, job_on, prepare_cell, spread, train_on
from tests.dist.every_family import make_rows, put
from tests.dist.memory.test_memory import must_be_forecast
from tests.dist.tiny import tiny_config
from tests.dist.worlds import add_tokenizer, installed, run_world
from tests.marks import rare_but_first

#: Scans, linear attention, several values from a block, bare weights, a deep head, an encoder.
SLICE = ("qwen3_5_text", "mamba", "openai-gpt", "apertus", "modernbert-decoder", "deepseek_v32", "bert")


def _put(family: str, root: Path, ways: tuple[str, ...]) -> dict[str, Any]:
    return put(family, root / "model", make_rows(root / "rows.jsonl"), ways=ways)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize("family", rare_but_first(installed(SLICE)))
def test_a_line_of_the_table_is_what_a_run_finds(family, tmp_path) -> None:
    assert run_world(1, _put, family, tmp_path, SHOWN)[0] == json.loads(TABLE.read_text())["families"][family]


def test_the_page_is_written_from_the_table() -> None:
    assert TABLE.with_suffix(".md").read_text() == page(json.loads(TABLE.read_text()))


@pytest.mark.parametrize("family", ["lfm2", "bart"])
def test_a_hybrid_is_counted_and_trained_and_what_is_no_decoder_refused(family, tmp_path) -> None:
    found = run_world(1, _put, family, tmp_path, ("single", "pp"))[0]
    if family == "bart":
        assert "it is the decoder of an encoder-decoder" in found["refused"]
        return
    assert found["planned"] == found["count"]
    assert found["cells"] == {"full/single": "equal", "full/pp": "equal", "lora/single": "equal", "lora/pp": "equal"}


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_matrices_without_elements_are_spread_too(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(every_family, "tiny_config", partial(tiny_config, n_shared_experts=0))
    found = run_world(1, _put, "deepseek_v3", tmp_path, ("single", "ddp", "fsdp"))[0]
    assert found["planned"] == found["count"]
    assert {*found["cells"].values()} == {"equal"}


#: Mixtures that differ in how they route, what is beside experts, and which ways are refused.
MIXTURES: dict[str, tuple[str, ...]] = {
    "gpt_oss": (),  # sinks, windows, biases of routers and experts; no plan of slices but of experts
    "phimoe": (),  # would draw noise as it routes
    "qwen2_moe": (),  # a shared expert with a gate
    "granitemoe": (),
    "glm4_moe": (),  # sigmoid routing, correction biases, dense blocks
    "deepseek_v2": (),  # latent attention
    "afmoe": (),  # a correction bias that is a parameter
    "ernie4_5_moe": (),  # one inside the router
    "minimax_m2": (),  # one beside it, which the router is handed
    "axk1": (),  # a norm behind shared and routed experts
    "llama4_text": ("ep",),  # every token through every expert, which only numbers show
    "deepseek_v3": (),  # groups of experts
}
#: Families without a row in the catalogue, whose shapes are read off what transformers builds.
BUILT: dict[str, tuple[str, ...]] = {
    "persimmon": ("tp", "ep"),
    "nanochat": ("ep",),
    **dict.fromkeys(("cwm", "hyperclovax", "jais2", "ministral3"), ("ep",)),
}
WAYS = ("single", "ddp", "zero1", "zero2", "fsdp", "mp", "pp", "tp", "ep")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of what PEFT warns of as plain transformers is adapted
@pytest.mark.parametrize("family", [*rare_but_first(installed([*MIXTURES])), *rare_but_first(installed([*BUILT]))])
def test_a_family_trains_as_transformers_does_and_alike_under_every_layout(family, tmp_path) -> None:
    found = put(family, tmp_path, make_rows(tmp_path / "rows.jsonl"), ways=WAYS)
    assert found["planned"] == found["count"]
    cells = {cell: said.partition(":")[0] for cell, said in found["cells"].items()}
    refused = (MIXTURES | BUILT)[family]
    assert cells == {f"{m}/{way}": "refused" if way in refused else "equal" for m in ("full", "lora") for way in WAYS}


@pytest.mark.slow
@pytest.mark.parametrize("family", installed(["gemma3n_text", "gemma4_text", "deepseek_v4", "glm_moe_dsa"]))
def test_stages_send_what_blocks_read_beside_the_stream(family, tmp_path) -> None:
    """Inputs of each block, keys and values of earlier ones, tokens, and places of tokens that
    earlier ones chose; Gemma 3n and DeepSeek V4 also have several streams."""
    ways = ("single", "packed", "mp", "pp", "gpipe", "interleaved", "zero_bubble", "fsdp x pp")
    found = put(family, tmp_path, make_rows(tmp_path / "rows.jsonl"), ways=ways)
    refused = {"gemma3n_text": ("zero_bubble",), "deepseek_v4": ("packed",)}.get(family, ())
    cells = {cell: said.partition(":")[0] for cell, said in found["cells"].items()}
    assert cells == {f"{m}/{way}": "refused" if way in refused else "equal" for m in ("full", "lora") for way in ways}


#: Several streams, inputs of each block, tokens, normed embeddings, heads that lie in groups.
WHOLE = ("gemma3n_text", "gemma4_text", "deepseek_v4", "inkling_text", "longcat_flash", "codegen")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", rare_but_first(installed(WHOLE)))
def test_slices_of_blocks_that_read_more_than_the_stream(family, tmp_path, monkeypatch) -> None:
    if family == "gemma4_text":  # as E2B, whose single head of keys all ranks have, with experts as 26B-A4B
        more = {"num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32, "enable_moe_block": True}
        monkeypatch.setattr(every_family, "tiny_config", partial(tiny_config, num_key_value_heads=1, **more))
    ways = ("single", "tp", "fsdp x tp")
    found = put(family, tmp_path, make_rows(tmp_path / "rows.jsonl"), ways=ways)
    assert found["planned"] == found["count"]
    assert found["cells"] == dict.fromkeys((f"{m}/{way}" for m in ("full", "lora") for way in ways), "equal")


def _streams(run: RunDirectory, chosen: Execution) -> list[torch.Tensor]:
    built, seen = composed(run, chosen), list[torch.Tensor]()
    inside = (module for one in built.model.spread.modules for module in one.modules())
    for block in next(module for module in inside if hasattr(module, "embed_tokens_per_layer")).layers:
        block.register_forward_hook(lambda *called: seen.append(called[-1].detach().clone()))
    train_on(built)
    return seen


def test_adapters_drop_alike_out_of_what_ranks_have_whole(tmp_path) -> None:
    rows = make_rows(tmp_path / "rows.jsonl")
    AutoModelForCausalLM.from_config(tiny_config("gemma3n_text")).save_pretrained(tmp_path / "model")
    add_tokenizer(tmp_path / "model", rows.read_text().splitlines())
    told: dict[str, Any] = {"data": {"path": str(rows), "max_length": 64}, "train": {"max_steps": 2}}
    job = job_on(tmp_path / "model", method="lora", lora={"r": 4, "use_dora": True, "lora_dropout": 0.3}, **told)
    one, other = run_world(2, _streams, prepare_cell(job, tmp_path / "run"), spread(Layout(tp=2)))
    assert len(one) == 2 * 4 and all(map(torch.equal, one, other))


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("jais2", "tp"),
        ("cwm", "pp"),
        ("nanochat", "fsdp"),
        ("hyperclovax", "mp"),
        ("persimmon", "ddp"),
    ],
)
def test_ranks_hold_of_a_family_without_a_row_what_its_build_says(family, layout, make_job, tmp_path) -> None:
    job = make_job(family, method="lora" if layout == "pp" else "full", train={"max_steps": 1})
    must_be_forecast(job, spread(LAYOUTS[layout], micros=2), tmp_path)
