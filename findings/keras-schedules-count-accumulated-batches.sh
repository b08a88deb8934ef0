#!/usr/bin/env bash
# Keras runs a learning rate schedule by batches where it steps by groups of them.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check keras==3.15.1 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH KERAS_BACKEND=torch KERAS_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""keras 3.15.1: with `gradient_accumulation_steps=4` the weights change at every fourth batch, and
`iterations`, by which Adam corrects its averages, counts those changes. The learning rate is taken
from the schedule at the number of batches: a warm-up or decay is over in a quarter of its steps,
and three of its four rates are never used. Nothing is said.
"""

import keras
import numpy


class Line(keras.optimizers.schedules.LearningRateSchedule):
    """A rate of 1 at the first step, 2 at the second, and so on."""

    def __call__(self, step):
        return keras.ops.cast(step, "float32") + 1.0


def changes(batches, accumulated):
    """How far each batch moves a weight whose gradient is 1, and the count of steps at the end."""
    weight = keras.Variable(numpy.zeros(1, "float32"))
    optimizer = keras.optimizers.SGD(Line(), gradient_accumulation_steps=accumulated)
    optimizer.build([weight])
    moved = []
    for _ in range(batches):
        before = float(keras.ops.convert_to_numpy(weight)[0])
        optimizer.apply([keras.ops.ones(1)])
        moved.append(before - float(keras.ops.convert_to_numpy(weight)[0]))
    return moved, int(keras.ops.convert_to_numpy(optimizer.iterations))


print(f"keras {keras.__version__}, rates of a schedule of 1, 2, 3, ..., and optimizer.iterations:")
plain, grouped = changes(3, None), changes(12, 4)
print(f"  3 batches, each a step: {plain[0]}, {plain[1]}")
print(f"  12 batches, 4 a step: {grouped[0]}, {grouped[1]}")
assert plain == ([1.0, 2.0, 3.0], 3)
assert grouped == ([0.0, 0.0, 0.0, 4.0, 0.0, 0.0, 0.0, 8.0, 0.0, 0.0, 0.0, 12.0], 3)
PYTHON
