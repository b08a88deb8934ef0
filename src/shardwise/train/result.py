"""What a finished run has in `final/`, for programs that use it."""

import json
import logging
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardwise.catalog.hub import is_hub_id
from shardwise.catalog.models import hub_id
from shardwise.errors import ModelError, ShardwiseError
from shardwise.models.content import folder_content
from shardwise.models.load import find_model_folder
from shardwise.models.weights import Weights
from shardwise.spec.job.file import read_job
from shardwise.spec.result import ADAPTER_CONFIG, BASE_KEYS, MANIFEST
from shardwise.spec.run import RunDirectory, read_json, revision_of
from shardwise.train.saving.export import EXPERTS, QUANTISATION, WEIGHTS, listed


def base_of(run: RunDirectory, named: str | None = None) -> tuple[Path, Any]:
    """The folder of an adapter's base, and QLoRA's config of it or None. Raises as `find_base`."""
    from transformers import BitsAndBytesConfig

    said = read_json(run.final / QUANTISATION)
    said = said or (read_json(run.final / "config.json") or {}).get("quantization_config")  # of earlier versions
    return find_base(run, named), BitsAndBytesConfig.from_dict(said) if said else None


def experts_in_4_bits(run: RunDirectory) -> bool:
    """Whether QLoRA had stacked experts in 4 bits too."""
    return bool((read_json(run.final / QUANTISATION) or {}).get(EXPERTS))


def find_base(run: RunDirectory, named: str | None = None) -> Path:
    """The folder of the model that a run began with: `named`, a folder or hub id; else as its job
    or adapter calls it, seen from the folders around the run and the working directory. Raises
    ModelError: it is not there, or a file of it is another than at training."""
    named = str(Path(named).expanduser()) if named and named.startswith("~/") else named
    manifest, adapter = (read_json(run.final / name) or {} for name in (MANIFEST, ADAPTER_CONFIG))
    recorded, asked = manifest.get("source", {}), named or read_job(run.resolved).model
    said = adapter.get(BASE_KEYS[0]) or asked
    seen = [*([] if named else run.root.resolve().parents), Path()]
    places = [above / name for name in ([named] if named else [asked, said]) for above in seen]
    # What was trained on has known files: the first folder that has them, whoever else is called
    # so.
    folders = [place.parent if place.is_file() else place for place in dict.fromkeys(places)]
    folders = [folder for folder in folders if (folder / "config.json").is_file()]
    if not folders and named:
        folders = [find_model_folder(named)]
    elif not folders:
        revision = adapter.get(BASE_KEYS[1]) or revision_of(run, said)
        folders = [_from_hub(run, said, revision=revision, is_folder=said == manifest.get("base"))]
    found = [(folder, _changed(folder, recorded)) for folder in folders]
    folder, changed = next((one for one in found if one[1] is None), found[0])
    if changed is None:
        return folder
    what = "adapter" if adapter else "model"
    message = f"is another file than the {what} in {run.final} was trained on; bring back the one it was, or name the"
    raise ModelError.at(folder / changed, f"{message} folder or hub id of that model by --base-model")


def _from_hub(run: RunDirectory, name: str, *, revision: str | None, is_folder: bool) -> Path:
    """The hub's model of a name, unless that is a folder's."""
    try:
        if not is_folder and is_hub_id(hub_id(name)):
            return find_model_folder(name, revision=revision)
        why = f"is the folder of the base model, and is neither in {Path.cwd()} nor in a folder around {run.root}"
    except ModelError as error:
        why = error.problems[0].message
    raise ModelError.at(name, f"{why}; where it has moved, name its folder or hub id by --base-model") from None


def _changed(folder: Path, recorded: dict[str, str]) -> str | None:
    try:
        now = folder_content(folder, weights=Weights(folder).files)
    except ModelError:
        return WEIGHTS
    return next((name for name, hashed in recorded.items() if now.get(name) != hashed), None)


def stop_ids(folder: Path) -> set[int]:
    """The tokens at which a result's generation_config.json stops; empty where it has none."""
    return set(listed((read_json(folder / "generation_config.json") or {}).get("eos_token_id")))


def run_program(action: Callable[..., None]) -> None:
    """Runs a program with arguments from its command line's JSON; prints user errors to stderr."""
    from transformers.utils import logging as theirs

    signal.signal(signal.SIGINT, signal.default_int_handler)
    # What the libraries deprecate or miss between themselves is not for the user of a model.
    warnings.simplefilter("ignore")
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    theirs.set_verbosity_error()
    theirs.disable_progress_bar()
    try:
        action(**json.loads(sys.argv[1]))
    except ShardwiseError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
