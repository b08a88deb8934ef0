#!/usr/bin/env bash
# In ExecuTorch, -1 % 3 of whole numbers is -1, where PyTorch, whose model it runs, has 2.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check executorch==1.5.1 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" -W ignore - 2>/dev/null <<'PYTHON'
"""executorch 1.5.1: the remainder of whole numbers has the sign of what is divided, as in C, and that of fractions the sign of the divisor, as in
PyTorch. A place in a ring of keys and values that is reckoned as (position - 1) % window is -1 at the first token, and a gather
by it reads the last place. The exported program, run by PyTorch, is right: only the program as ExecuTorch runs it is not.
"""

from importlib.metadata import version

import torch
from executorch.exir import to_edge
from executorch.runtime import Runtime


class Remainder(torch.nn.Module):
    def forward(self, left, right):
        return left % right


print(f"executorch {version('executorch')}, torch {torch.__version__}, x % y:")
for left, right in (([-1, -4, 4], [3, 3, 3]), ([4, 1, 5], [-3, -3, 3]), ([-1.0, -4.0, 4.0], [3.0, 3.0, 3.0])):
    given = torch.tensor(left), torch.tensor(right)
    exported = torch.export.export(Remainder(), given)
    program = Runtime.get().load_program(to_edge(exported).to_executorch().buffer)
    found = program.load_method("forward").execute(given)[0]
    right_one = exported.module()(*given)
    print(f"  {left} % {right}: executorch {found.tolist()}, torch {right_one.tolist()}")
    assert right_one.tolist() == [one % other for one, other in zip(left, right, strict=True)]
    expected = right_one if given[0].is_floating_point() else torch.fmod(*given)
    assert found.tolist() == expected.tolist()
PYTHON
