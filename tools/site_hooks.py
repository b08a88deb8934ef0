"""Adds CONTRIBUTING.md, ARCHITECTURE.md and the planner to the site, and refuses pages that load anything from outside.

mkdocs calls these functions while it builds the site (`hooks` in mkdocs.yml).
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from shardwise.errors import InputError
from shardwise.web.folder import export

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


def on_post_build(*, config: MkDocsConfig, **_: Any) -> None:
    """Puts the planner in the place of its page, which stays where the planner cannot be made or NO_PLANNER is set."""
    if os.environ.get("NO_PLANNER"):
        return
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / "planner"
        try:
            export(made, told=lambda _: None)
        except InputError as error:
            logging.getLogger("mkdocs.hooks").info("the planner is left out of the site: %s", error)
            return
        for page in made.glob("*.html"):
            back = '<a href="../index.html">Documentation</a>\n<span id="state"'
            page.write_text(page.read_text(encoding="utf-8").replace('<span id="state"', back), encoding="utf-8")
        shutil.copytree(made, Path(config.site_dir) / "planner", dirs_exist_ok=True)
