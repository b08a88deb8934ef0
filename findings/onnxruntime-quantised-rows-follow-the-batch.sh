#!/usr/bin/env bash
# In a model that ONNX Runtime quantises dynamically, a row's answer depends on the other rows of its batch.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""onnxruntime 1.32.0: quantize_dynamic gives a layer's inputs one scale for the whole batch, of its largest number. Of a row beside one
with numbers a hundred times as large nothing is left: its own answer comes out as zeros, or far off. Padding, and tokens with the
large activations that language models have, do the same. Alone, the row is answered to a percent. Settings for a scale by channel
are about the weights; there is none by row.
"""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

generator = np.random.default_rng(0)
weight = generator.standard_normal((64, 32)).astype(np.float32)
graph = helper.make_graph(
    [helper.make_node("MatMul", ["x", "weight"], ["y"])],
    "layer",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 64])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 32])],
    [numpy_helper.from_array(weight, "weight")],
)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "layer.onnx")
row = generator.standard_normal((1, 64)).astype(np.float32)
right = row @ weight
print(f"onnxruntime {onnxruntime.__version__}, error of one row, over the size of its answer:")
for per_channel in (False, True):
    quantize_dynamic("layer.onnx", "quantised.onnx", per_channel=per_channel)
    session = onnxruntime.InferenceSession("quantised.onnx", providers=["CPUExecutionProvider"])
    for times, low, high in ((1, 0, 0.03), (100, 0.3, 2), (1000, 0.99, 1.01)):
        alone = session.run(None, {"x": row})[0]
        beside = session.run(None, {"x": np.concatenate((row, row[:, ::-1] * times))})[0][:1]
        errors = [float(np.linalg.norm(found - right) / np.linalg.norm(right)) for found in (alone, beside)]
        print(f"  per_channel={per_channel}: alone {errors[0]:.3f}; beside a row {times} times as large {errors[1]:.3f}")
        assert errors[0] < 0.03 and low <= errors[1] <= high
PYTHON
