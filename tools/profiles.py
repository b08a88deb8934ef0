"""Measures the catalogue's models whose family has no row: shapes as transformers builds them, and profiles of their
blocks under full fine-tuning, LoRA and QLoRA as a job's defaults have them on a GPU, in src/shardwise/catalog/measured.

python tools/profiles.py                    # exits 1 where a file is missing, or is of another config or transformers
python tools/profiles.py --check [NAME...]  # also measures again, and compares
python tools/profiles.py --write [NAME...]  # measures; without names what is missing or out of date
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from shardwise.api.plans.shapes import measured_under
from shardwise.catalog.config import shape_from_data
from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import MEASURED, KnownModel, key_of, known_models, measured
from shardwise.catalog.stated import UnlistedFamilyError
from shardwise.launch.processes.helpers import block_profiles, built_shape
from shardwise.plan import open_executions
from shardwise.spec.job.file import parse_job
from shardwise.spec.job.keys import Job
from shardwise.spec.model.profile import LONGEST_MEASURED, WINDOWS, alike_from

METHODS = ("full", "lora", "qlora")


def unlisted() -> dict[str, KnownModel]:
    """The entries of the catalogue of which its rows say nothing."""
    found: dict[str, KnownModel] = {}
    for name, known in known_models().items():
        try:
            shape_from_data(known.config, file=name)
        except UnlistedFamilyError:
            found[name] = known
    return found


def measure(known: KnownModel) -> dict[str, Any]:
    """What a file holds, of an entry of the catalogue."""
    shape, profiles = built_shape(known.config, file=f"catalogue entry {known.name}"), dict[str, Any]()
    cluster, stated = parse_hardware("8x H100-SXM"), known.config.get("text_config", known.config)
    windows = {stated[key] for key in WINDOWS if type(stated.get(key)) is int}
    for method in METHODS if shape.counted else ():
        for longest in sorted({LONGEST_MEASURED, *(window + 1 for window in windows if window >= LONGEST_MEASURED)}):
            job = _job(known.name, method, alike_from(longest, known.config))
            executions = [execution.to_json() for execution in open_executions(job, shape, cluster)]
            question = {"config": known.config, "executions": executions, "cuda": True, "kernels": []}
            found = block_profiles({**question, "job": job.to_json(), "shape": shape.to_json()})
            if isinstance(found, str):
                raise SystemExit(f"{known.name}, {method}: {found}")
            profiles[measured_under(job, job.data.max_length)] = _rounded([asdict(one) for one in found])
    return {
        "transformers": version("transformers"),
        "torch": version("torch").partition("+")[0],
        "shape": shape.to_json(),
        "profiles": profiles,
    }


def _job(name: str, method: str, length: int) -> Job:
    return parse_job(f"model: {name}\nmethod: {method}\ndata: {{max_length: {length}}}")


def _rounded(made: Any) -> Any:
    """Figures to six digits: the rest is noise of a fit."""
    if isinstance(made, dict):
        return {key: _rounded(value) for key, value in made.items()}
    if isinstance(made, list | tuple):
        return [_rounded(value) for value in made]
    if not isinstance(made, float):
        return made
    return float(f"{made:.6g}") if abs(made) > 1e-3 else 0.0


def main() -> None:
    """Reads the command line, and does as it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    found = {name: measured(known.config) for name, known in unlisted().items()}
    old = [name for name, kept in found.items() if kept is None or kept["transformers"] != version("transformers")]
    wrong = [] if args.write else [f"{name}: not measured, or not of this config and transformers" for name in old]
    for name in (args.names or (old if args.write else [*found])) if args.write or args.check else ():
        made = measure(known_models()[name])
        if args.write:
            MEASURED.mkdir(exist_ok=True)
            data = json.dumps(made, sort_keys=True, separators=(",", ":")).encode()
            for file in MEASURED.glob(f"{name}-????????.json.gz"):
                file.unlink()
            file = MEASURED / f"{name}-{key_of(known_models()[name].config)}.json.gz"
            file.write_bytes(gzip.compress(data, mtime=0))
            print(f"{name}: measured", flush=True)
        elif made != found[name]:
            wrong.append(f"{name}: measured otherwise")
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
