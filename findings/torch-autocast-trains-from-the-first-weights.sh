#!/usr/bin/env bash
# A training loop inside one autocast of PyTorch computes every step with the weights it began with.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: autocast keeps the low-precision copy of a weight until its outermost context ends,
and does not look whether the weight has changed. With the context around the whole loop rather than
around each forward, every step sees the first weights: the loss of one batch stays the same to the
last digit while the optimizer moves the weights further and further along one gradient.
`cache_enabled=False` gives the losses of a context per step. Nothing is said.
"""

import contextlib
import functools

import torch


def losses(outside, **settings):
    """The losses of six steps on one batch, and how far they moved the weights."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    inputs, wanted, found = torch.randn(16, 8), torch.randn(16, 8), []
    low = functools.partial(torch.autocast, "cpu", torch.bfloat16, **settings)
    with low() if outside else contextlib.nullcontext():
        for _ in range(6):
            optimizer.zero_grad()
            with contextlib.nullcontext() if outside else low():
                loss = (model(inputs).float() - wanted).square().mean()
            loss.backward()
            optimizer.step()
            found.append(round(loss.item(), 4))
    return found, (model.weight - before).norm().item()


print(f"torch {torch.__version__}, losses of six steps on one batch, and how far the weights went:")
each, around, uncached = losses(outside=False), losses(outside=True), losses(outside=True, cache_enabled=False)
for words, found in (
    ("autocast per forward", each),
    ("autocast around the loop", around),
    ("without its cache", uncached),
):
    print(f"  {words}: {found[0]}, {found[1]:.3f}")
assert each == uncached and each[0][-1] < 0.6 * each[0][0]
assert len(set(around[0])) == 1 and around[0][0] == each[0][0] and around[1] > 1.2 * each[1]
PYTHON
