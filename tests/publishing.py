"""Model folders as they are published in fewer bits, by the formats' definition."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def publish_fp8(folder: Path, *, block: int) -> Path:
    """Puts the matrices of blocks into FP8: squares of elements are divided by their scales."""
    stored = load_file(folder / "model.safetensors")
    made: dict[str, torch.Tensor] = {}
    for key, tensor in stored.items():
        if tensor.ndim != 2 or ".layers." not in key or key.endswith("mlp.gate.weight"):
            made[key] = tensor.bfloat16()
            continue
        rows, columns = tensor.shape
        squares = torch.zeros(-(-rows // block) * block, -(-columns // block) * block)
        squares[:rows, :columns] = tensor
        squares = squares.view(len(squares) // block, block, -1, block)
        scales = squares.abs().amax((1, 3)) / 448
        elements = (squares / scales[:, None, :, None]).flatten(2).flatten(0, 1)[:rows, :columns]
        made[key] = elements.to(torch.float8_e4m3fn).contiguous()
        made[f"{key}_scale_inv"] = scales
    return _write(folder, made, {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [block, block]})


def publish_mxfp4(folder: Path, *, seed: int = 0) -> Path:
    """Puts random blocks of MXFP4 in the place of a folder's stacked experts."""
    drawn = torch.Generator().manual_seed(seed)
    made: dict[str, torch.Tensor] = {}
    for key, tensor in load_file(folder / "model.safetensors").items():
        if tensor.ndim != 3:
            made[key] = tensor.bfloat16()
            continue
        experts, columns, rows = tensor.shape
        shape = (experts, rows, columns // 32)
        made[f"{key}_blocks"] = torch.randint(256, (*shape, 16), dtype=torch.uint8, generator=drawn)
        made[f"{key}_scales"] = torch.randint(115, 125, shape, dtype=torch.uint8, generator=drawn)
    return _write(folder, made, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})


def _write(folder: Path, made: dict[str, torch.Tensor], quantisation: dict[str, Any]) -> Path:
    save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config = {key: value for key, value in config.items() if key != "dtype"}
    config.get("text_config", config)["quantization_config"] = quantisation
    (folder / "config.json").write_text(json.dumps(config))
    return folder
