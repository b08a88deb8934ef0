"""Weights published in fewer bits are read as transformers dequantises them, by parts too."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from shardwise.catalog.config import shape_from_data
from shardwise.errors import ModelError
from shardwise.models.keys import Keys
from shardwise.models.load import build_on_meta, load_wide, read_config
from shardwise.models.published import widened_by_transformers
from shardwise.models.weights import Weights
from tests.publishing import publish_fp8, publish_mxfp4
from tests.unit.configs import config

NARROW = config("", 64, 96, 2, 4, 2, vocab=96, head_dim=16, num_experts_per_tok=2)
del NARROW["model_type"]
FAMILIES = {
    "fp8": ("qwen3_moe", {"num_experts": 4, "moe_intermediate_size": 32, "mlp_only_layers": [1]}),
    "mxfp4": ("gpt_oss", {"num_local_experts": 5}),
}


def model(folder: Path, way: str, *, block: int = 16) -> Path:
    torch.manual_seed(0)
    kind, keys = FAMILIES[way]
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **NARROW, **keys)).save_pretrained(folder)
    return publish_mxfp4(folder) if way == "mxfp4" else publish_fp8(folder, block=block)


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("way", FAMILIES)
def test_weights_are_those_of_transformers_bit_for_bit(way, dtype, tmp_path) -> None:
    folder = model(tmp_path, way)
    quantisation = widened_by_transformers(config_of(folder))
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, quantization_config=quantisation)
    found = dict(load_wide(folder, dtype=dtype).named_parameters())
    expected = dict(theirs.named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    assert sum(weight.ndim == 3 and len(weight.unique()) > 20 for weight in found.values()) >= 2


@pytest.mark.parametrize("way", FAMILIES)
def test_a_part_is_that_of_the_whole_wherever_it_begins(way, tmp_path) -> None:
    folder = model(tmp_path, way, block=12)  # no whole number of blocks
    built, weights = build_on_meta(read_config(folder), attn_implementation="eager"), Weights(folder)
    weights.rename(Keys(built, weights.names, weights.shape))
    whole = dict(load_wide(folder, dtype=torch.float32).named_parameters())
    for name, tensor in ((name, tensor) for name, tensor in whole.items() if tensor.ndim > 1):
        for offsets in ((size // 3 for size in tensor.shape), (0 for _ in tensor.shape)):
            part = [(begin, min(13, size - begin)) for begin, size in zip(offsets, tensor.shape, strict=True)]
            found = weights.read(name, offsets=tuple(b for b, _ in part), lengths=tuple(n for _, n in part))
            assert torch.equal(found.float(), tensor[tuple(slice(b, b + n) for b, n in part)]), name


def test_a_part_is_made_of_the_blocks_that_it_lies_in_alone(tmp_path, monkeypatch) -> None:
    weights = Weights(model(tmp_path, "mxfp4"))
    read: dict[str, int] = {}
    stored = Weights.stored_part

    def counted(self: Weights, key: str, part: tuple[slice, ...]) -> torch.Tensor:
        found = stored(self, key, part)
        read[key] = read.get(key, 0) + found.numel()
        return found

    monkeypatch.setattr(Weights, "stored_part", counted)
    weights.read("model.layers.0.mlp.experts.gate_up_proj", offsets=(1, 32, 7), lengths=(2, 32, 5))
    assert sorted(read.values()) == [2 * 5, 2 * 5 * 16]


def test_blocks_at_the_end_of_a_matrix_may_be_shorter(tmp_path) -> None:
    """DeepSeek V3 has 576 rows in blocks of 128, at which transformers 5.23 stops."""
    folder, key = model(tmp_path, "fp8", block=24), "model.layers.1.mlp.up_proj.weight"
    stored = load_file(folder / "model.safetensors")
    assert stored[f"{key}_scale_inv"].shape == (4, 3)
    scales = stored[f"{key}_scale_inv"].repeat_interleave(24, 0).repeat_interleave(24, 1)[:, :64]
    expected = stored[key].float() * scales
    assert torch.equal(load_wide(folder, dtype=torch.float32).get_parameter(key), expected)


def test_a_scale_in_powers_of_two_and_experts_of_two_elements_a_byte_are_read(tmp_path) -> None:
    """As DeepSeek V4 is published: scales under another name, elements of E2M1."""
    folder = model(tmp_path, "fp8", block=32)
    stored, drawn = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(1)
    expected: dict[str, torch.Tensor] = {}
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    for key in [key for key in stored if ".experts." in key and key.endswith(".weight")]:
        rows, columns = stored[key].shape
        stored.pop(f"{key}_scale_inv")
        pairs = torch.randint(256, (rows, columns // 2), dtype=torch.uint8, generator=drawn)
        exponents = torch.randint(120, 130, (rows, columns // 32), dtype=torch.uint8, generator=drawn)
        stored[key] = pairs.view(torch.int8)
        stored[f"{key.removesuffix('.weight')}.scale"] = exponents.view(torch.float8_e8m0fnu)
        wide = values[torch.stack([pairs & 15, pairs >> 4], -1).flatten(1).long()]
        expected[key] = wide * torch.exp2(exponents.float() - 127).repeat_interleave(32, 1)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    found = load_wide(folder, dtype=torch.float32).get_parameter("model.layers.0.mlp.experts.gate_up_proj")
    keys = [f"model.layers.0.mlp.experts.{{}}.{part}_proj.weight" for part in ("gate", "up")]
    for index in range(4):
        assert torch.equal(found[index], torch.cat([expected[key.format(index)] for key in keys]))


def test_scales_that_do_not_go_with_their_elements_are_a_sentence(tmp_path) -> None:
    folder = model(tmp_path, "fp8")
    stored, key = load_file(folder / "model.safetensors"), "model.layers.1.mlp.up_proj.weight_scale_inv"
    save_file({**stored, key: torch.ones(5, 4)}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"up_proj\.weight_scale_inv has 5 x 4 scales for 96 x 64 elements; config"):
        load_wide(folder, dtype=torch.float32)


@pytest.mark.parametrize("way", FAMILIES)
def test_a_plan_counts_the_widened_weights_and_the_published_files(way, tmp_path) -> None:
    folder = model(tmp_path, way)
    shape = shape_from_data(config_of(folder), file="config.json")
    assert (shape.published, shape.storage_dtype) == (way, "bfloat16")
    assert shape.num_parameters == sum(p.numel() for p in load_wide(folder, dtype=torch.bfloat16).parameters())
    stored = load_file(folder / "model.safetensors")
    scales = sum(tensor.nbytes for key, tensor in stored.items() if key.endswith("_scale_inv"))
    assert shape.published_bytes == pytest.approx(sum(tensor.nbytes for tensor in stored.values()) - scales, rel=1e-3)


@pytest.mark.parametrize("method", ["awq", "gptq", "compressed-tensors", "bitsandbytes", "fbgemm_fp8"])
def test_what_is_quantised_otherwise_is_refused(method) -> None:
    config = {"model_type": "llama", "quantization_config": {"quant_method": method}}
    with pytest.raises(ModelError, match=f"quantised already, by {method}; mxfp4 and fp8 are read, and no others"):
        shape_from_data(config, file="config.json")
