#!/usr/bin/env bash
# fmin of hyperopt returns the place of a choice, not the choice: the best of the batch sizes 8, 16 and 32 is 2.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check hyperopt==0.3.0 numpy==2.4.6 setuptools==80.9.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""hyperopt 0.3.0: the objective is handed what `hp.choice` chose, and `fmin` gives back where that stood in the list. A training that is started with the best it returned runs with another batch size, rank or number of epochs, without an error where these are numbers. `space_eval(space, best)` makes settings of it. Trials hold places as well.
"""

from importlib.metadata import version

import numpy
from hyperopt import fmin, hp, rand, space_eval

space = {"batch_size": hp.choice("batch_size", [8, 16, 32]), "accumulate": hp.choice("accumulate", [4, 2])}
seen = []


def cost(settings):
    return abs(settings["batch_size"] - 32) + settings["accumulate"]


def loss(settings):
    seen.append(settings)
    return cost(settings)


best = fmin(loss, space, algo=rand.suggest, max_evals=40, rstate=numpy.random.default_rng(0), show_progressbar=False)
settings = min(seen, key=cost)
made = space_eval(space, best)
print(f"hyperopt {version('hyperopt')}, of {len(seen)} trials:")
print(f"  what the best trial was given: {settings}")
print(f"  what fmin returns: { {name: int(value) for name, value in best.items()} }")
print(f"  what space_eval makes of it: {made}")
assert settings == {"batch_size": 32, "accumulate": 2} == made
assert best == {"batch_size": 2, "accumulate": 1}
PYTHON
