#!/usr/bin/env bash
# PyTorch's logsigmoid of -18, exported to ONNX, is minus infinity in ONNX Runtime.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.32.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0, onnxscript 0.7.2, onnxruntime 1.32.0 on CPU: the exporter writes `logsigmoid` as
the logarithm of a sigmoid, and ONNX Runtime's sigmoid is 0 from -18 down. So the preference for a
pair of answers whose rewards lie 18 apart, and the `binary_cross_entropy_with_logits` of a
confident wrong logit, are infinite, where PyTorch has 18; at -17 it is 0.8 off. `logaddexp` is
written as exponentials, and fails from 89 up and -104 down. `softplus` holds. Nothing is said.
"""

import contextlib
import io
import logging

import onnxruntime
import torch
from torch.nn import functional

logging.disable(logging.CRITICAL)


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, values):
        return self.function(values)


def results(function, *numbers):
    """What PyTorch gives, and what the exported model gives."""
    values = torch.tensor(numbers)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        torch.onnx.export(Model(function).eval(), (values,), "model.onnx", dynamo=True)
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    return function(values).tolist(), session.run(None, {session.get_inputs()[0].name: values.numpy()})[0].tolist()


def loss(values):
    return functional.binary_cross_entropy_with_logits(values, torch.ones(4), reduction="none")


def twice(values):
    return torch.logaddexp(values, values)


print(f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}: PyTorch, exported")
infinity = float("inf")
cases = (
    ("logsigmoid", functional.logsigmoid, (-5.0, -10.0, -18.0, -50.0), (-5.007, -10.0, -infinity, -infinity)),
    ("loss of logits with label 1", loss, (-5.0, -10.0, -18.0, -50.0), (5.007, 10.0, infinity, infinity)),
    ("logaddexp of twice", twice, (50.0, 100.0, -50.0, -200.0), (50.693, infinity, -49.307, -infinity)),
    ("softplus", functional.softplus, (5.0, 18.0, 50.0, 200.0), (5.007, 18.0, 50.0, 200.0)),
)
for name, function, numbers, expected in cases:
    own, exported = results(function, *numbers)
    print(f"  {name} {numbers}: {[round(one, 3) for one in own]}, {[round(one, 3) for one in exported]}")
    assert all(one == two or abs(one - two) < 1e-3 for one, two in zip(exported, expected))
    assert all(
        abs(one) < infinity and (abs(two) == infinity or abs(one - two) < 1e-3) for one, two in zip(own, expected)
    )
PYTHON
