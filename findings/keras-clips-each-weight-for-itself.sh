#!/usr/bin/env bash
# Keras's clipnorm scales each weight's gradient to the norm on its own, and so turns the step of the model.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check keras==3.15.1 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH KERAS_BACKEND=torch "$folder/venv/bin/python" - <<'PYTHON'
"""keras 3.15.1: `clipnorm=1.0` of an optimizer is not the clipping by the norm of all gradients that trainers of language models mean (PyTorch's
`clip_grad_norm_`, max_grad_norm of transformers). Every weight is clipped for itself: those whose gradients are small beside others' are not, and
those with large ones all become equally long. The direction is another, and a model of a hundred weights may move ten times as far. The clipping by the
norm of all is `global_clipnorm`.
"""

import keras
import numpy as np
import torch

gradients = [np.array([3.0, 4.0], "float32"), np.array([30.0, 40.0], "float32"), np.array([0.03, 0.04], "float32")]


def steps(**options):
    weights = [keras.Variable(np.zeros(2, "float32")) for _ in gradients]
    keras.optimizers.SGD(1.0, **options).apply([torch.from_numpy(gradient) for gradient in gradients], weights)
    return [float(np.linalg.norm(weight.numpy())) for weight in weights]


parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in gradients]
for parameter, gradient in zip(parameters, gradients, strict=True):
    parameter.grad = torch.from_numpy(gradient.copy())
torch.nn.utils.clip_grad_norm_(parameters, 1.0)
wanted = [parameter.grad.norm().item() for parameter in parameters]
found, of_all = steps(clipnorm=1.0), steps(global_clipnorm=1.0)
print("gradients of 5, 50 and 0.05, clipped to a norm of 1:")
for name, sizes in (("PyTorch", wanted), (f"keras {keras.__version__}, global_clipnorm", of_all), ("keras, clipnorm", found)):
    print(f"  {name}: " + ", ".join(f"{size:.3g}" for size in sizes) + f"; together {np.linalg.norm(sizes):.3g}")
assert np.allclose(wanted, of_all, rtol=1e-4) and np.allclose(found, [1, 1, 0.05], rtol=1e-4)
PYTHON
