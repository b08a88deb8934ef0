#!/usr/bin/env bash
# In ExecuTorch a running sum of bfloat16 ones stops at 256, and that of float16 at 2,048.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check executorch==1.5.1 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" -W ignore - 2>/dev/null <<'PYTHON'
"""executorch 1.5.1: cumsum adds in the type of what it is given, where PyTorch on CPU adds in float32 and rounds at the end. Positions that
are counted from a mask in bfloat16 are right to 256 tokens and stay there; probabilities in order, summed up for top-p, never reach 1
where many are small: of 1,024 that are 1/1,024 each PyTorch's sum is 1 and ExecuTorch's 1/4. sum itself adds in float32, as its result shows.
"""

from importlib.metadata import version

import torch
from executorch.exir import to_edge
from executorch.runtime import Runtime


class Running(torch.nn.Module):
    def forward(self, x):
        return x.cumsum(0), x.sum()


print(f"executorch {version('executorch')}, torch {torch.__version__}, 1,024 or 4,096 like numbers:")
for dtype, count, number, stop in (
    (torch.float32, 4096, 1.0, 4096.0),
    (torch.float16, 4096, 1.0, 2048.0),
    (torch.bfloat16, 4096, 1.0, 256.0),
    (torch.bfloat16, 1024, 1 / 1024, 0.25),
):
    given = (torch.full((count,), number, dtype=dtype),)
    exported = torch.export.export(Running(), given)
    program = Runtime.get().load_program(to_edge(exported).to_executorch().buffer)
    running, whole = program.load_method("forward").execute(given)
    right = exported.module()(*given)[0][-1].item()
    print(f"  {dtype}, {count} times {number}: executorch's last {running[-1].item()} and sum {whole.item()}, torch's last {right}")
    assert running[-1].item() == stop and whole.item() == right == count * number
PYTHON
