#!/usr/bin/env bash
# With a dtype, tensorizer casts whole numbers too: a count of 70,000 is infinite in float16.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
# It encrypts by libnacl, which asks for Debian's libsodium23.
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 tensorizer==2.12.1
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""tensorizer 2.12.1: `TensorDeserializer(dtype=...)` gives every tensor that type but those of yes and no: whole numbers too. Token IDs of 4,099
in a buffer are 4,100 in float16, a count of 70,000 is infinite, and what indexes by them fails or takes another row. `module.to(dtype)` of
PyTorch casts numbers with fractions alone, and so does `dtype` of transformers. Nothing is said.
"""

from importlib.metadata import version

import torch
from tensorizer import TensorDeserializer, TensorSerializer


def made():
    module = torch.nn.Linear(2, 2)
    for name, values in (("ids", [4099, 31]), ("count", [70_000]), ("mask", [True, False])):
        module.register_buffer(name, torch.tensor(values))
    return module


writer = TensorSerializer("model.tensors")
writer.write_module(made())
writer.close()
print(f"tensorizer {version('tensorizer')}, torch {torch.__version__}:")
for kind in (None, torch.float16, torch.bfloat16):
    loaded, cast = made(), made()
    TensorDeserializer("model.tensors", device="cpu", dtype=kind).load_into_module(loaded)
    cast = cast.to(kind) if kind else cast
    for name in ("ids", "count", "mask"):
        got, wanted = getattr(loaded, name), getattr(cast, name)
        print(f"  dtype={kind}, {name}: tensorizer {got.tolist()} ({got.dtype}); module.to {wanted.tolist()} ({wanted.dtype})")
        assert wanted.dtype == getattr(made(), name).dtype and got.dtype == (kind if kind and name != "mask" else wanted.dtype)
        assert name == "mask" or (got.tolist() == wanted.tolist()) == (kind is None)
    assert kind != torch.float16 or (loaded.ids.tolist() == [4100, 31] and loaded.count.isinf().all())
PYTHON
