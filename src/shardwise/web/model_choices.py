"""The models that the page plans: known ones, dropped ones, folders and hub ids."""

import difflib
import hashlib
import shutil
import tempfile
import weakref
from functools import cache
from pathlib import Path

from shardwise import api
from shardwise.api.learn import pages as parts
from shardwise.errors import ModelError

#: Of a config.json, as the catalogue reads it; and dropped ones that are kept.
MOST_BYTES, MOST_KEPT = 1024 * 1024, 16
DROPPED = "config.json:"


@cache
def catalogue() -> dict[str, str]:
    """Names and hub ids of known models, in small letters -> as they are written."""
    return {name.lower(): name for known in api.known_models().values() for name in (known.name, known.hub_id)}


def _near(text: str) -> str:
    """Names of the catalogue that are spelt like it, as the end of a sentence."""
    near = difflib.get_close_matches(text.lower(), catalogue(), n=2, cutoff=0.6)
    return f"; near it are {' and '.join(catalogue()[name] for name in near)}" if near else ""


class Models:
    """Where models are found: `folder` is the served one, None where there is no server and so no
    folder and no hub. Dropped files end with the server or the page."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder.resolve()
        self._kept = Path(tempfile.mkdtemp(prefix="shardwise-serve-"))
        weakref.finalize(self, shutil.rmtree, self._kept, ignore_errors=True)

    def keep(self, raw: bytes) -> str:
        """Keeps a config.json by content; returns its address name. Raises ModelError: not one."""
        parts.read_config(raw)
        digest = hashlib.sha256(raw).hexdigest()[:16]
        place = self._kept / digest / "config.json"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(raw)
        files = sorted(self._kept.glob("*/config.json"), key=lambda path: path.stat().st_mtime)
        for old in files[:-MOST_KEPT]:
            old.unlink()
            old.parent.rmdir()
        return DROPPED + digest

    def find(self, text: str, *, hub: bool) -> str:
        """What `api.plan` takes for a field's text. Raises ModelError: it may not be read."""
        if text.startswith(DROPPED):
            digest = text.removeprefix(DROPPED)
            place = self._kept / digest / "config.json"
            if len(digest) == 16 and digest.isalnum() and place.is_file():
                return str(place)
            raise ModelError("the config.json that was dropped is no longer here; drop it again")
        if text.lower() in catalogue() and not Path(text).exists():
            return text
        if self._folder is None:
            said = "this page asks no hub" if hub else f"{text[:80]!r} is no model of the catalogue"
            raise ModelError(f"{said}{_near(text)}; drop the model's config.json, which stays in this browser")
        if (below := self._below(text, self._folder)) is not None:
            return below
        if hub and api.is_hub_id(text) and not Path(text).exists():
            return text
        raise ModelError(
            f"{text[:80]!r} is no model of the catalogue and no folder or config.json below the served folder"
            f"{_near(text)}; drop a config.json, or let the hub be asked"
        )

    @staticmethod
    def _below(text: str, folder: Path) -> str | None:
        """A folder with a config.json, or such a file, in the served folder past any links."""
        if not text or "\0" in text or Path(text).is_absolute():
            return None
        place = (folder / text).resolve()
        file = place / "config.json" if place.is_dir() else place
        inside = place.is_relative_to(folder) and file.resolve().is_relative_to(folder)
        if not inside or file.suffix != ".json" or not file.is_file():
            return None
        # As written where that names the same place, so that answers match the command line there.
        is_same = not text.startswith("~") and Path(text).exists() and Path(text).resolve() == place
        return text if is_same else str(place)
