#!/usr/bin/env bash
# tensorizer gives a model with tied weights two of them, which training takes apart.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
# It encrypts by libnacl, which asks for Debian's libsodium23.
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 tensorizer==2.12.1
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""tensorizer 2.12.1: `load_into_module` puts a parameter of its own in each place of a module, also where the module has one in two places, as
an output layer that shares the embedding. The weights are equal at first; the model then has more parameters than it says, in memory
and for the optimizer, and the first step takes them apart. `load_state_dict` of PyTorch keeps the tie; nothing is said.
"""

from importlib.metadata import version

import torch
from tensorizer import TensorDeserializer, TensorSerializer


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(6, 4)
        self.head = torch.nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.embedding(ids))


torch.manual_seed(0)
saved = Model()
writer = TensorSerializer("model.tensors")
writer.write_module(saved)
writer.close()
by_tensorizer, by_pytorch = Model(), Model()
TensorDeserializer("model.tensors", device="cpu").load_into_module(by_tensorizer)
by_pytorch.load_state_dict(saved.state_dict())
print(f"tensorizer {version('tensorizer')}, torch {torch.__version__}, parameters; how far the two are apart, before and after a step:")
for name, model in (("tensorizer", by_tensorizer), ("load_state_dict", by_pytorch)):
    count = sum(weight.numel() for weight in model.parameters())
    before = (model.embedding.weight - model.head.weight).abs().max().item()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.nn.functional.cross_entropy(model(torch.arange(6)), torch.arange(6).roll(1)).backward()
    optimizer.step()
    after = (model.embedding.weight - model.head.weight).abs().max().item()
    print(f"  {name}: {count}; {before:.3f}, {after:.3f}")
    apart = name == "tensorizer"
    assert before == 0 and (after > 0.01) == apart and count == (48 if apart else 24)
PYTHON
