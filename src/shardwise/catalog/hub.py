"""A model's files by hub id: config.json from the cache or by one HTTP request."""

import os
import re
from contextlib import suppress
from pathlib import Path

from shardwise.catalog.config import MAX_BYTES
from shardwise.errors import ModelError

_TIMEOUT_SECONDS = 10
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")

_MEANING = {
    401: "needs a login; run `hf auth login`, or set HF_TOKEN to a token that may read it",
    403: "is gated; accept its licence on the hub, and log in by `hf auth login` or set HF_TOKEN",
    404: "is not on the hub, or has no config.json; check the id, or name a folder",
}


def is_hub_id(name: str) -> bool:
    """Whether a text has the form `name` or `org/name`."""
    return _HUB_ID.fullmatch(name) is not None and ".." not in name


def cached_config(hub_id: str, *, revision: str | None = None) -> Path | None:
    """The config.json in the Hugging Face cache for a hub id; None where none is."""
    found = repository_folder(hub_id).glob(f"snapshots/{revision or '*'}/config.json")
    there = (path for path in found if path.is_file())
    return max(there, key=lambda path: (path.stat().st_mtime, str(path)), default=None)


def repository_folder(hub_id: str) -> Path:
    """The folder of the Hugging Face cache that holds a model."""
    return _place("HF_HUB_CACHE", "hub") / f"models--{hub_id.replace('/', '--')}"


def _place(variable: str, name: str) -> Path:
    """A file or folder that huggingface_hub keeps in its home, unless a variable names another."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    home = Path(os.environ.get("HF_HOME") or base)
    return Path(os.path.expandvars(os.environ.get(variable) or home / name)).expanduser()


def _token() -> str | None:
    if _is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        return None
    token = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")
    with suppress(OSError, UnicodeDecodeError):
        token = token or _place("HF_TOKEN_PATH", "token").read_text(encoding="utf-8")
    # A line break inside would be an error whose message has the token.
    return "".join((token or "").splitlines()).strip() or None


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "on")


def download_config(hub_id: str) -> tuple[str, bytes]:
    """Fetches config.json: its address, and at most one byte more than a configuration may have.
    Raises ModelError: HF_HUB_OFFLINE is set, or the hub did not answer, or refused."""
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    if _is_on("HF_HUB_OFFLINE"):
        raise ModelError.at(hub_id, "is not in the local cache, and HF_HUB_OFFLINE is set")
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    if not endpoint.startswith(("https://", "http://")):
        raise ModelError(f"HF_ENDPOINT is {endpoint!r}; expected an address that begins with https://")
    url = f"{endpoint}/{hub_id}/resolve/main/config.json"
    request = Request(url, headers={"User-Agent": "shardwise"})  # noqa: S310 - the scheme is checked above
    if token := _token():
        # Unredirected: a redirect to a file host must not carry the user's token along.
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310 - the scheme is checked above
            return url, answer.read(MAX_BYTES + 1)
    except HTTPError as error:
        error.close()  # It is the answer too, whose connection would stay open.
        meaning = _MEANING.get(error.code, f"could not be read: the hub answered {error.code}")
        raise ModelError.at(hub_id, meaning) from None
    except (URLError, HTTPException, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        message = f"is neither a folder nor in the local cache, and {endpoint} cannot be reached: {reason}"
        raise ModelError.at(hub_id, message) from None


#: Patterns of file names, from the tokenizer classes of transformers and their chat templates.
TOKENIZER_PATTERNS = (
    *("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges*", "*.model", "*.tiktoken"),
    *("chat_template*", "additional_chat_templates/*"),
)


def tokenizer_files(folder: Path) -> list[Path]:
    """The regular tokenizer files of a model folder, by name."""
    return sorted({path for pattern in TOKENIZER_PATTERNS for path in folder.glob(pattern) if path.is_file()})
