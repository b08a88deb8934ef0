"""A clean process that loads `final/` as a user would and compares it with what the live model said.

    python -m shardwise.train.check FOLDER PROBE.safetensors --compute-dtype float32 --saved-dtype float32 --base SOURCE

Exit 0 and one JSON line, or exit 1 and one sentence.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

#: Root mean square of the difference of logits over their standard deviation. The same values agree far better than
#: this in float32; in bfloat16 roundings of 2^-8 add up over the layers, and a GPU's kernels add in another order. The
#: shorter of the type that is computed in and the type that was saved decides.
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.01}


def main(arguments: list[str] | None = None) -> int:
    """Checks one folder; see the module's docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("probe", type=Path)
    parser.add_argument("--compute-dtype", choices=sorted(TOLERANCE), required=True)
    parser.add_argument("--saved-dtype", required=True)
    parser.add_argument("--base", required=True)
    parser.add_argument("--untrained", action="store_true", help="no step had a learning rate above zero")
    options = parser.parse_args(arguments)
    request = load_file(options.probe)
    load = _load_adapter if (options.folder / "adapter_config.json").is_file() else _load_model
    model, faults = load(options.folder, base=options.base)
    faults += _not_finite(options.folder)
    faults += [] if options.untrained else _without_effect(options.folder)
    difference, allowed = 0.0, max(TOLERANCE[options.compute_dtype], TOLERANCE.get(options.saved_dtype, 0.0))
    if not faults:
        difference = _difference(model, request, compute=getattr(torch, options.compute_dtype))
        if not difference <= allowed:  # so that NaN, which is no more than anything, does not pass
            faults.append(
                f"its logits differ from the live model's by {difference:.2e} standard deviations; "
                f"expected at most {allowed:.0e}"
            )
    if faults:
        print(f"the saved folder is not the trained model: {'; '.join(faults[:3])}", file=sys.stderr)
        return 1
    print(json.dumps({"ok": True, "difference": difference}))
    return 0


def _load_model(folder: Path, *, base: str) -> tuple[Any, list[str]]:
    del base
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, trust_remote_code=False)
    model, info = loaded
    kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
    return model, [f"{kind.replace('_', ' ')} {sorted(map(str, info[kind]))[:3]}" for kind in kinds if info.get(kind)]


def _load_adapter(folder: Path, *, base: str) -> tuple[Any, list[str]]:
    from peft import PeftModel, get_peft_model_state_dict
    from transformers import AutoModelForCausalLM

    source = AutoModelForCausalLM.from_pretrained(base, trust_remote_code=False)
    model = PeftModel.from_pretrained(source, str(folder))
    stored = load_file(folder / "adapter_model.safetensors")
    expected = get_peft_model_state_dict(model, save_embedding_layers=False)
    faults = [f"{name} has no place in PEFT's model" for name in stored.keys() - expected.keys()]
    faults += [f"{name} is missing" for name in expected.keys() - stored.keys()]
    return model, faults


def _without_effect(folder: Path) -> list[str]:
    """What is wrong with adapters that are what they were at the start."""
    file = folder / "adapter_model.safetensors"
    if not file.is_file() or any(bool(tensor.any()) for name, tensor in load_file(file).items() if "lora_B" in name):
        return []
    return ["every lora_B is zero: nothing was trained"]


def _not_finite(folder: Path) -> list[str]:
    faults: list[str] = []
    for file in sorted(folder.glob("*.safetensors")):
        if file.name.startswith("."):
            continue
        faults += [
            f"{name} holds NaN or infinity" for name, t in load_file(file).items() if not torch.isfinite(t).all()
        ]
    return faults


@torch.no_grad()
def _difference(model: Any, request: dict[str, torch.Tensor], *, compute: torch.dtype) -> float:
    """Root mean square difference of logits, over the standard deviation of the live ones."""
    model = model.to(compute).eval()
    logits = model(input_ids=request["probe"], use_cache=False).logits.float()
    live = request["logits"]
    if logits.shape != live.shape:
        return float("inf")
    return ((logits - live).square().mean().sqrt() / live.std().clamp_min(1e-6)).item()


if __name__ == "__main__":
    sys.exit(main())
