#!/usr/bin/env bash
# PyTorch's cross entropy of float16 logits over more than 65,504 tokens can be infinite on CPU.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0, on CPU: `log_softmax` over the last dimension has the sum of exponentials as float16 where logits are that, which ends at 65,504.
Over a vocabulary of 128,256, logits that are near each other, as at the start of training, sum to more: every log probability is minus
infinity, and the loss infinite; so is `logsumexp`. Nothing else is wrong with the model. `softmax`, `log_softmax` with
`dtype=torch.float32`, over another dimension, and in bfloat16 are right.
"""

import torch

labels = torch.tensor([0, 1, 2, 3])
print(f"torch {torch.__version__}, logits of standard deviation 0.02, mean loss of four rows:")
for size, kind in ((65_000, torch.float16), (128_256, torch.float16), (128_256, torch.bfloat16), (128_256, torch.float32)):
    logits = (torch.randn(4, size, generator=torch.Generator().manual_seed(0)) * 0.02).to(kind)
    exact = torch.nn.functional.cross_entropy(logits.double(), labels).item()
    found = {
        "cross_entropy": torch.nn.functional.cross_entropy(logits, labels),
        "logsumexp": (torch.logsumexp(logits, -1) - logits[range(4), labels]).mean(),
        "softmax": -torch.softmax(logits, -1)[range(4), labels].float().log().mean(),
        "log_softmax in float32": -torch.log_softmax(logits, -1, dtype=torch.float32)[range(4), labels].mean(),
        "log_softmax of the first dimension": -torch.log_softmax(logits.T.contiguous(), 0)[labels, range(4)].mean(),
    }
    print(f"  {size:,} tokens, {kind}, exact {exact:.2f}: " + ", ".join(f"{name} {loss:.2f}" for name, loss in found.items()))
    for name, loss in found.items():
        broken = kind == torch.float16 and size > 65_504 and name in ("cross_entropy", "logsumexp")
        assert loss.item() == float("inf") if broken else abs(loss.item() - exact) < 0.1
PYTHON
