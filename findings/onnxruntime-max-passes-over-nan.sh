#!/usr/bin/env bash
# In ONNX Runtime the largest of 1, NaN and 3 is 3: max and argmax hide a NaN.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.32.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""onnxruntime 1.32.0 on CPU, models exported by torch 2.13.0: `max` and `min` over a dimension pass
over NaN, and `argmax` gives the place of the largest number beside it. In PyTorch and numpy a NaN
makes the maximum NaN, and argmax gives its place. So a check of logits for NaN by their maximum, or
a choice of the best token of broken logits, looks sound in the exported model. Elementwise
`maximum`, sums and softmax keep it.
"""

import contextlib
import io
import logging

import numpy
import onnxruntime
import torch

logging.disable(logging.CRITICAL)


class Model(torch.nn.Module):
    def forward(self, values):
        larger = torch.maximum(values, torch.ones(()))
        return values.max(-1).values, values.min(-1).values, values.argmax(-1), larger.sum(-1)


values = torch.tensor([[1.0, float("nan"), 3.0], [1.0, 2.0, 3.0]])
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    torch.onnx.export(Model(), (values,), "model.onnx", dynamo=True)
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
own = [one.tolist() for one in Model()(values)]
exported = [one.tolist() for one in session.run(None, {session.get_inputs()[0].name: values.numpy()})]
print(f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}, {values.tolist()}: PyTorch, exported")
for name, one, two in zip(("max", "min", "argmax", "sum of maximum(values, 1)"), own, exported):
    print(f"  {name}: {one}, {two}")
assert str(own) == "[[nan, 3.0], [nan, 1.0], [1, 2], [nan, 6.0]]"
assert str(exported) == "[[3.0, 3.0], [1.0, 1.0], [2, 2], [nan, 6.0]]"
assert numpy.isnan(values.numpy()[0].max()) and values.numpy()[0].argmax() == 1
PYTHON
