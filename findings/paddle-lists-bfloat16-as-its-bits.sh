#!/usr/bin/env bash
# PaddlePaddle lists the bfloat16 numbers 1, 2 and -3 as 16256, 16384 and 49216.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check paddlepaddle==3.3.1 numpy==2.4.6 setuptools==80.9.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" -W ignore - <<'PYTHON'
"""paddle 3.3.1: tolist(), numpy() and numpy's own asarray give of a bfloat16 tensor the bits of each number as a whole number without sign, and so
does paddle.load(return_numpy=True) of a checkpoint. Losses, norms and weights that are taken out so are large, positive and
look like numbers; their mean and their order are wrong. item(), float() and what is printed give the numbers themselves.
"""

import numpy as np
import paddle

given = paddle.to_tensor([1.0, 2.0, -3.0]).astype("bfloat16")
paddle.save({"weight": given}, "weights.pdparams")
found = {
    "tolist()": given.tolist(),
    "numpy()": given.numpy().tolist(),
    "numpy.asarray": np.asarray(given).tolist(),
    "load(return_numpy=True)": paddle.load("weights.pdparams", return_numpy=True)["weight"].tolist(),
    "item()": [one.item() for one in given],
    "float()": [float(one) for one in given],
    "astype('float32')": given.astype("float32").tolist(),
}
print(f"paddle {paddle.__version__}, 1, 2 and -3 in bfloat16:")
for name, numbers in found.items():
    print(f"  {name}: {numbers}")
    bits = name in ("tolist()", "numpy()", "numpy.asarray", "load(return_numpy=True)")
    assert numbers == ([16256, 16384, 49216] if bits else [1.0, 2.0, -3.0])
PYTHON
