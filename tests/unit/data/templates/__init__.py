"""Chat templates in the manner of the families: their structure, in words of our own."""

from pathlib import Path


def _read(path: Path) -> str:
    """A template: its lines are broken for the eye alone, and a comment is about it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return "".join(line.strip() for line in lines if not line.startswith("{#"))


TEMPLATES = {path.stem.upper(): _read(path) for path in Path(__file__).parent.glob("*.jinja")}
