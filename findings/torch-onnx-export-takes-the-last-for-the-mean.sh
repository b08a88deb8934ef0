#!/usr/bin/env bash
# Exported to ONNX, PyTorch's scatter_reduce gives the last value of each place for their mean.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.32.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0, onnxscript 0.7.2: ONNX has no reduction by mean, and the exporter writes
`scatter_reduce` with reduce="mean", by which tokens are pooled to words or nodes to graphs, as a
scatter without any reduction: what comes last is kept. Sums and extremes are right. The export
succeeds, and nothing is said.
"""

import contextlib
import io
import logging

import onnxruntime
import torch

logging.disable(logging.CRITICAL)
VALUES, PLACES = torch.tensor([1.0, 2.0, 3.0, 4.0, 8.0]), torch.tensor([0, 0, 0, 2, 2])


class Pool(torch.nn.Module):
    def __init__(self, reduce, include_self):
        super().__init__()
        self.settings = {"reduce": reduce, "include_self": include_self}

    def forward(self, values, places):
        return torch.zeros(3).scatter_reduce(0, places, values, **self.settings)


def results(*settings):
    """What PyTorch gives, and what the exported model gives."""
    model = Pool(*settings)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        torch.onnx.export(model, (VALUES, PLACES), "model.onnx", dynamo=True)
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    given = {one.name: value.numpy() for one, value in zip(session.get_inputs(), (VALUES, PLACES))}
    return model(VALUES, PLACES).tolist(), session.run(None, given)[0].tolist()


print(f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}: PyTorch, exported")
print(f"  {VALUES.tolist()} at {PLACES.tolist()}:")
for reduce in ("mean", "sum", "amax"):
    for include_self in (False, True):
        own, exported = results(reduce, include_self)
        print(f"  {reduce}, include_self={include_self}: {own}, {exported}")
        assert exported == ([3.0, 0.0, 8.0] if reduce == "mean" else own)
        assert reduce != "mean" or own == ([1.5, 0.0, 4.0] if include_self else [2.0, 0.0, 6.0])
PYTHON
