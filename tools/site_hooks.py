"""Adds CONTRIBUTING.md and ARCHITECTURE.md to the site, and refuses pages that load anything from outside.

mkdocs calls these functions while it builds the site (`hooks` in mkdocs.yml).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
#: Page of the site -> file of the repository.
PAGES = {"contributing.md": "CONTRIBUTING.md", "architecture.md": "ARCHITECTURE.md"}

LOADED_FROM_OUTSIDE = re.compile(
    r'<(?:script|img|iframe|source)\b[^>]*\ssrc="?(https?:)?//[^>]+>|<link\b[^>]*stylesheet[^>]*(https?:)?//[^>]+>'
)


def on_post_page(output: str, *, page: Page, **_: Any) -> str:
    """The page as it is.

    Raises:
        PluginError: a reader's browser would ask another host for something.
    """
    found = LOADED_FROM_OUTSIDE.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri} loads something from outside: {found[0]}")
    return output


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
