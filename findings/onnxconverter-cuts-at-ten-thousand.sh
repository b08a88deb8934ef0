#!/usr/bin/env bash
# onnxconverter-common cuts the weights of a float16 model at 10,000, where float16 has 65,504.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  onnxconverter-common==1.16.0 onnx==1.23.2 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""onnxconverter-common 1.16.0: `convert_float_to_float16` cuts every number above 10,000 to
10,000, where float16 goes to 65,504, and raises every one below 1e-7 to 1.2e-7, where the nearest
one of float16 is zero. A constant of 60,000 or a mask of -1e9 is another number in the exported
model; -inf stays. A warning names the largest and the smallest such number of a tensor alone. With
a `max_finite_val` of 65504 those that float16 has stay.
"""

import warnings
from importlib.metadata import version

import numpy
from onnx import TensorProto, helper, numpy_helper
from onnxconverter_common import float16

GIVEN = numpy.array([1.5, 9000, 20000, 60000, -1e9, 1e-9, 0, -numpy.inf], dtype=numpy.float32)


def converted(**settings):
    places = [helper.make_tensor_value_info(name, TensorProto.FLOAT, GIVEN.shape) for name in "xy"]
    node = helper.make_node("Add", ["x", "weight"], ["y"])
    graph = helper.make_graph([node], "sum", places[:1], places[1:], [numpy_helper.from_array(GIVEN, "weight")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = float16.convert_float_to_float16(helper.make_model(graph), **settings)
    return numpy_helper.to_array(model.graph.initializer[0])


print(f"onnxconverter-common {version('onnxconverter-common')}, numbers in float32, in float16, with a wider range:")
found, wider = converted(), converted(max_finite_val=65504.0)
for given, cut, kept in zip(GIVEN.tolist(), found.tolist(), wider.tolist(), strict=True):
    print(f"  {given:g}: {cut:g}, {kept:g}")
assert found.dtype == numpy.float16
assert found.tolist()[:5] == [1.5, 9000, 10000, 10000, -10000] and float(found[5]) > 1e-7 and found[7] == -numpy.inf
assert wider[2] == 20000 and wider[3] == numpy.float16(60000)
PYTHON
