#!/usr/bin/env bash
# An infinite loss that is logged to MLflow's database comes back as a finite number.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mlflow==3.17.2
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""mlflow 3.17.2 keeps metrics in SQLite unless told otherwise, and writes infinity there as the largest float, 1.8e308, as its documentation of log_metric allows. A check by
`isfinite` for runs that have diverged finds none, and the mean over runs is a number. NaN is kept, beside it as a mark.
"""

import logging
import math
import os
import warnings

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
warnings.simplefilter("ignore")
logging.disable(logging.ERROR)

import mlflow  # noqa: E402

mlflow.set_tracking_uri("sqlite:///runs.db")
logged = {"loss": 0.25, "infinite": math.inf, "least": -math.inf, "broken": math.nan}
with mlflow.start_run() as run:
    for name, value in logged.items():
        mlflow.log_metric(name, value, step=1)
kept = mlflow.MlflowClient().get_run(run.info.run_id).data.metrics
print(f"mlflow {mlflow.__version__}:")
for name, value in logged.items():
    print(f"  {name}: logged {value}, kept {kept[name]}, finite {math.isfinite(kept[name])}")
assert kept["loss"] == 0.25 and math.isnan(kept["broken"])
assert kept["infinite"] == 1.7976931348623157e308 == -kept["least"]
PYTHON
