"""Chromium by Playwright, and a page of it that must stay calm."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from tests.unit.house.tree import ROOT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = Path(os.environ.get("SHARDWISE_AXE", ROOT / "node_modules/axe-core/axe.min.js"))
WIDTHS = (390, 1280, 1920)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield found
        found.close()


class Tab:
    """A page of the browser, which must not complain and not be wider than its window."""

    def __init__(self, browser: Any, url: str, *, width: int = 1280, scheme: str = "light") -> None:
        self.url, self.complaints = url, list[str]()
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda asked: None if asked.url.startswith(url) else self.complaints.append(asked.url))
        self.page.add_init_script(
            "window.shifted = 0; new PerformanceObserver((list) => { for (const one of list.getEntries())"
            " if (!one.hadRecentInput) window.shifted += one.value; }).observe({type: 'layout-shift', buffered: true});"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.page.close()

    def open(self, path: str) -> Self:
        self.page.goto(self.url + path)
        self.page.wait_for_selector("html.scripted")
        return self

    def until(self, true: str, *, seconds: float = 20) -> None:
        """Waits for an expression; Playwright's own waiting needs eval, which pages refuse."""
        until = time.monotonic() + seconds
        while not self.page.evaluate(true):
            assert time.monotonic() < until, true
            time.sleep(0.02)

    def type(self, field: str, text: str) -> None:
        self.page.focus(field)
        self.page.keyboard.press("Control+A")
        self.page.keyboard.type(text)

    def verdict(self, *, has: str) -> str:
        self.until(f"document.getElementById('verdict').textContent.includes({json.dumps(has)})")
        self.page.wait_for_selector("#answer:not([aria-busy])")
        return self.page.inner_text("#verdict")

    def assert_calm(self, *, refused: int = 0) -> None:
        # The browser itself notes each answer of 4xx that a page was meant to show.
        kept = [text for text in self.complaints if "status of 400" not in text]
        assert kept == []
        assert len(self.complaints) - len(kept) <= refused
        assert self.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert self.page.evaluate("window.shifted") < 0.02, "the layout shifts"

    def assert_accessible(self) -> None:
        """axe-core finds nothing serious; skips the test where it is not installed."""
        if not AXE.is_file():
            pytest.skip("needs axe-core: npm install --no-save axe-core, or SHARDWISE_AXE")
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        serious = [
            (one["id"], node["target"], node.get("failureSummary"))
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]
        assert serious == []
