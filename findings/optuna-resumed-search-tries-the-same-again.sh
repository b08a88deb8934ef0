#!/usr/bin/env bash
# A resumed search of Optuna with a seeded sampler tries the same values again.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check optuna==5.0.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""optuna 5.0.0 keeps the trials of a study in its storage, and not where its sampler's random numbers stand. A search that is resumed with
the same script, and so the same seed, begins them anew: each further start of five trials, which the default sampler draws at random
up to its tenth, trains the same five models again; the random sampler never tries others. Nothing is said.
"""

import optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)


def tried(kind, seed, starts):
    storage = optuna.storages.InMemoryStorage()
    for _ in range(starts):
        study = optuna.create_study(
            storage=storage, study_name="search", load_if_exists=True, sampler=getattr(optuna.samplers, kind)(seed=seed)
        )
        study.optimize(lambda trial: trial.suggest_float("rate", 1e-5, 1e-2, log=True), n_trials=5 if starts > 1 else 10)
    return [trial.params["rate"] for trial in study.trials]


print(f"optuna {optuna.__version__}, different rates of ten trials:")
for kind in ("TPESampler", "RandomSampler"):
    found = {
        "one start, seed 1": tried(kind, 1, 1),
        "two starts, seed 1": tried(kind, 1, 2),
        "two starts, no seed": tried(kind, None, 2),
    }
    for name, rates in found.items():
        print(f"  {kind}, {name}: {len(set(rates))}")
        assert len(rates) == 10 and len(set(rates)) == (5 if name.startswith("two starts, seed") else 10)
    assert found["two starts, seed 1"] == found["one start, seed 1"][:5] * 2
PYTHON
