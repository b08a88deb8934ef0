#!/usr/bin/env bash
# One token with a large embedding, and ONNX Runtime's quantize_dynamic makes those of all others zeros.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""onnxruntime 1.32.0: quantize_dynamic takes the table of embeddings along, and gives all tokens in it one scale, of the largest number.
Beside one row that is 30 times as large the others are off by a fifth, beside one 1,000 times as large nothing: every other token is a
row of zeros. per_channel=True does not change it. The weights of matrices are taken so too, but their per_channel works.
With op_types_to_quantize=["MatMul"] the table stays as it is.
"""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

table = np.random.default_rng(0).standard_normal((1000, 64)).astype(np.float32)
print(f"onnxruntime {onnxruntime.__version__}, error of all embeddings but one, over their size:")
for times, low, high in ((1, 0, 0.02), (30, 0.1, 0.3), (1000, 1, 1)):
    larger = table.copy()
    larger[7] *= times
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["x"])],
        "embedding",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["tokens"])],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["tokens", 64])],
        [numpy_helper.from_array(larger, "table")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "embedding.onnx")
    others = np.array([token for token in range(1000) if token != 7])
    errors = []
    for settings in ({}, {"per_channel": True}, {"op_types_to_quantize": ["MatMul"]}):
        quantize_dynamic("embedding.onnx", "quantised.onnx", **settings)
        session = onnxruntime.InferenceSession("quantised.onnx", providers=["CPUExecutionProvider"])
        found = session.run(None, {"ids": others})[0]
        errors.append(float(np.linalg.norm(found - table[others]) / np.linalg.norm(table[others])))
    print(f"  one row {times} times as large: {errors[0]:.3f}; per_channel=True {errors[1]:.3f}; matrices alone {errors[2]:.3f}")
    assert low <= errors[0] <= high and errors[0] == errors[1] and errors[2] == 0
PYTHON
