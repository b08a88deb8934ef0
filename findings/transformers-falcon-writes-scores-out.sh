#!/usr/bin/env bash
# Attention of Falcon-7B by "sdpa" keeps every score: its memory grows with the square of a row.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 numpy
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""transformers 5.23.0 hands PyTorch one head of keys and values for all heads of queries of a Falcon with `multi_query`,
as Falcon-7B is, and does not say `enable_gqa`. PyTorch broadcasts such keys in the kernel that writes all scores out,
and in no other, so that attn_implementation="sdpa" keeps as much as "eager" would. The newer Falcons (40B), whose code
repeats keys itself, keep what grows with the row alone.
"""

from importlib.metadata import version

import torch
from transformers import FalconConfig, FalconForCausalLM


def kept(kernel, **keys):
    """Bytes that a forward of 2,048 tokens keeps for its backward."""
    config = FalconConfig(
        vocab_size=64,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=8,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        attn_implementation=kernel,
        **keys,
    )
    model, storages = FalconForCausalLM(config), {}

    def note(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model.transformer(torch.zeros(1, 2048, dtype=torch.int64)).last_hidden_state.sum()
    return sum(storages.values())


print(f"transformers {version('transformers')}, torch {version('torch')}: MiB kept of a row of 2,048, 8 heads, 2 blocks")
shares = {}
for what, keys in {
    "multi_query": {"multi_query": True, "new_decoder_architecture": False},
    "new_decoder_architecture": {"num_kv_heads": 1, "new_decoder_architecture": True},
}.items():
    sdpa, eager = kept("sdpa", **keys), kept("eager", **keys)
    shares[what] = sdpa / eager
    print(f"  {what}: {sdpa / 2**20:.1f} by sdpa, {eager / 2**20:.1f} by eager")
assert shares["multi_query"] > 0.9
assert shares["new_decoder_architecture"] < 0.3
PYTHON
