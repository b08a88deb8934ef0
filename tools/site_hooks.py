"""Adds CONTRIBUTING.md and ARCHITECTURE.md to the documentation site.

mkdocs calls these functions while it builds the site (`hooks` in mkdocs.yml).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
#: Page of the site -> file of the repository.
PAGES = {"contributing.md": "CONTRIBUTING.md", "architecture.md": "ARCHITECTURE.md"}


def on_files(files: Files, *, config: MkDocsConfig, **_: Any) -> Files:
    """Adds the pages that lie outside docs/."""
    for page, source in PAGES.items():
        text = linked_within_site((ROOT / source).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    return files


def linked_within_site(text: str) -> str:
    """The text with links to other pages of the site, and the names of files where the site has no such page."""

    def replaced(found: re.Match[str]) -> str:
        words, target = found.groups()
        if target.startswith(("http://", "https://", "#")):
            return found[0]
        pages = {source: page for page, source in PAGES.items()}
        if target in pages:
            return f"[{words}]({pages[target]})"
        return f"[{words}]({target.removeprefix('docs/')})" if target.startswith("docs/") else words

    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", replaced, text)
