#!/usr/bin/env bash
# A shuffled stream of datasets that is repeated gives every epoch in the same order.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""datasets 5.2.0: `shuffle().repeat(n)` of a stream draws one order and gives it n times, so that each epoch's batches are those of the first.
`set_epoch` changes the order, and a loop over epochs calls it; within `repeat` nothing does. `repeat(n).shuffle()` draws anew, and mixes the
epochs where they meet. The seed, or none, makes no difference, and nothing is said.
"""

from importlib.metadata import version

import datasets

rows, epochs = 12, 3


def orders(stream):
    values = [row["x"] for row in stream]
    return [values[start : start + rows] for start in range(0, len(values), rows)]


def stream():
    return datasets.Dataset.from_dict({"x": list(range(rows))}).to_iterable_dataset(num_shards=3)


found = {
    "shuffle, repeat": orders(stream().shuffle(seed=1, buffer_size=rows).repeat(epochs)),
    "shuffle without a seed, repeat": orders(stream().shuffle(buffer_size=rows).repeat(epochs)),
    "repeat, shuffle": orders(stream().repeat(epochs).shuffle(seed=1, buffer_size=rows)),
}
shuffled, found["shuffle, set_epoch"] = stream().shuffle(seed=1, buffer_size=rows), []
for epoch in range(epochs):
    shuffled.set_epoch(epoch)
    found["shuffle, set_epoch"] += orders(shuffled)
print(f"datasets {version('datasets')}, three epochs of a stream:")
for name, got in found.items():
    print(f"  {name}: {got}")
    assert len(got) == epochs and got[0] != list(range(rows))
    assert (got[0] == got[1] == got[2]) == name.endswith(", repeat")
PYTHON
