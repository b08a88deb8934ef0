#!/usr/bin/env bash
# Of a query shorter than the keys, causal attention of PyTorch, JAX, Keras and ONNX sees the first keys, that of MLX all before it.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 jax==0.10.2 keras==3.15.1 mlx==0.32.4 mlx-cpu==0.32.4 onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH KERAS_BACKEND=torch "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0, jax 0.10.2, keras 3.15.1, onnxruntime 1.32.0: where there are more keys than queries, as when a prompt is read in parts or tokens are
decoded over a cache, `is_causal` lays both at their starts: the first new token sees the first key alone, and a single new one forgets the whole
text before it. MLX (mlx 0.32.4, mask "causal"), as FlashAttention, lays them at their ends. Give a mask, or `causal_lower_right` of PyTorch.
"""

import jax
import jax.numpy as jnp
import keras
import mlx.core as mx
import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper
from torch.nn.attention.bias import causal_lower_right

queries, keys = 2, 5
generator = np.random.default_rng(0)
q, k = (generator.normal(size=(1, 1, count, 8)).astype("float32") for count in (queries, keys))
v = np.eye(keys, 8, dtype="float32")[None, None]
swapped = [value.transpose(0, 2, 1, 3) for value in (q, k, v)]
tensors = [torch.from_numpy(value) for value in (q, k, v)]
ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape) for name, value in zip("qkv", (q, k, v), strict=True)]
node = helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=1)
graph = helper.make_graph([node], "graph", ports, [helper.make_tensor_value_info("y", TensorProto.FLOAT, q.shape)])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
session = onnxruntime.InferenceSession(model.SerializeToString())
found = {
    "PyTorch": torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=True)[0, 0],
    "JAX": jax.nn.dot_product_attention(*(jnp.asarray(value) for value in swapped), is_causal=True)[0, :, 0],
    "Keras": keras.ops.dot_product_attention(*(torch.from_numpy(value) for value in swapped), is_causal=True)[0, :, 0],
    "ONNX Runtime": session.run(None, {"q": q, "k": k, "v": v})[0][0, 0],
    "PyTorch, causal_lower_right": torch.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=causal_lower_right(queries, keys))[0, 0],
    "MLX": mx.fast.scaled_dot_product_attention(mx.array(q), mx.array(k), mx.array(v), scale=8**-0.5, mask="causal")[0, 0],
}
print(f"how many of {keys} keys each of {queries} queries sees:")
for number, (name, output) in enumerate(found.items()):
    seen = (np.array(output)[:, :keys] != 0).sum(axis=1).tolist()
    print(f"  {name}: {seen[0]} and {seen[1]}")
    assert seen == ([1, 2] if number < 4 else [4, 5])
PYTHON
