"""Whether files of `final/` are those of its manifest; what else it may hold and say of its base.

A person may write into a result: `README.md` is theirs once they have changed it,
`adapter_config.json` may name its base anew, and files that no manifest records are left alone.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from math import inf
from os import stat_result
from pathlib import Path
from typing import Any, cast

from shardwise.spec.run import read_json

MANIFEST, CARD, ADAPTER_CONFIG = "manifest.json", "README.md", "adapter_config.json"

#: What adapter_config.json says of its base, which may be set by hand.
BASE_KEYS = ("base_model_name_or_path", "revision")

#: Files up to this size are always hashed. Hashing all of a large model may take minutes: a larger
#: file is taken for whole where it has the size that was written and was last changed, or put
#: there, before its manifest was.
HASHED_BYTES = 16 * 1024 * 1024


def result_fault(final: Path, *, most_bytes: float = inf) -> str | None:
    """What is wrong with a folder's files; None where nothing is. `most_bytes`: larger files that
    changed since the manifest are hashed up to this size."""
    recorded = (read_json(final / MANIFEST) or {}).get("files")
    if not isinstance(recorded, dict):
        return f"{MANIFEST} is missing or damaged, so that nothing tells whether the other files are whole"
    files = cast(dict[str, Any], recorded)
    is_hashed = _hashed(final, most_bytes)
    for name in sorted(files):
        entry = cast(dict[str, Any], files[name]) if isinstance(files[name], dict) else {}
        fault = file_fault(final / name, entry, is_hashed=is_hashed)
        if fault is not None:
            return f"{name} {fault}"
    return None


def _hashed(folder: Path, most_bytes: float) -> Callable[[stat_result], bool]:
    written_ns = (folder / MANIFEST).stat().st_mtime_ns

    def is_hashed(status: stat_result) -> bool:
        # No program can set an entry's change time (ctime), as copies set that of its content.
        changed = max(status.st_mtime_ns, status.st_ctime_ns) > written_ns
        return status.st_size <= (max(HASHED_BYTES, most_bytes) if changed else HASHED_BYTES)

    return is_hashed


def file_fault(
    path: Path, recorded: dict[str, Any], *, is_hashed: Callable[[stat_result], bool] = lambda _: True
) -> str | None:
    """How a file differs from the size and sha256 that were recorded when it was written, or None.
    `settings`: that of all its keys but those of the base, which then count alone."""
    try:
        if not path.is_file():
            return "is missing"
        if "settings" in recorded:
            return None if settings_of(path) == recorded["settings"] else "says other things than were written"
        status = path.stat()
        if status.st_size != recorded.get("size"):
            return f"has {status.st_size} bytes, and {recorded.get('size')} were written"
        if not is_hashed(status):
            return None
        with path.open("rb") as file:
            same = hashlib.file_digest(file, "sha256").hexdigest() == recorded.get("sha256")
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return None if same else f"is not what was written: its sha256 is another than in {MANIFEST}"


def settings_of(path: Path) -> str:
    """The sha256 of adapter_config.json without the name of its base, however it is spaced."""
    said = {key: value for key, value in (read_json(path) or {}).items() if key not in BASE_KEYS}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def naming_a_folder(result: Path) -> list[str]:
    """Files of a result that name its base by a folder of the machine on which it was trained,
    where nobody has set a hub id since. Earlier versions wrote whole paths."""
    written: str | None = (read_json(result / MANIFEST) or {}).get("base")
    said = (read_json(result / ADAPTER_CONFIG) or {}).get(BASE_KEYS[0])
    files = [ADAPTER_CONFIG] if said is not None and (said == written or Path(said).is_absolute()) else []
    card = (result / CARD).read_text(encoding="utf-8", errors="replace") if (result / CARD).is_file() else ""
    return files + ([CARD] if written is not None and f'\nbase_model: "{Path(written).name}"\n' in card else [])


def keep_what_a_person_put(old: Path, new: Path) -> list[str]:
    """Links into a new folder what the one that it replaces holds and its manifest does not record:
    names of these files. What is written anew under such a name gives way."""
    kept = put_by_a_person(old)
    for name in kept:
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        (new / name).unlink(missing_ok=True)
        try:
            os.link(old / name, new / name, follow_symlinks=False)
        except OSError:  # not every file system has links
            shutil.copy2(old / name, new / name, follow_symlinks=False)
    return kept


def put_by_a_person(folder: Path) -> list[str]:
    """Files that were added to a result or changed in it since it was written."""
    manifest = read_json(folder / MANIFEST) or {}
    recorded = manifest.get("files")
    if not isinstance(recorded, dict):
        return []
    files = {**cast(dict[str, Any], recorded), CARD: manifest.get("card")}
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or path.is_file())
    is_hashed = _hashed(folder, inf)
    known = {name: entry for name, entry in files.items() if entry}
    ours = {name for name, entry in known.items() if not file_fault(folder / name, entry, is_hashed=is_hashed)}
    return [name for name in found if name not in {*ours, MANIFEST}]
