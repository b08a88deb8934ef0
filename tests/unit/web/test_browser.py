"""The pages in a real browser: Chromium by Playwright, at three widths, in dark and light, by keyboard alone."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.house.tree import ROOT
from tests.unit.report.runs import RunMaker, make_job
from tests.unit.web.conftest import CONFIG, fill
from tests.unit.web.served import Served, serving

pytestmark = pytest.mark.slow

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
AXE = Path(os.environ.get("SHARDWISE_AXE", ROOT / "node_modules/axe-core/axe.min.js"))
WIDTHS = (390, 1024, 1920)
QUESTION = (
    "/?model=tinyllama-1.1b&method=lora&hardware=2x+RTX-4090&length=1024&batch=8&rank=16&goal=fastest&layout=auto"
)
PATHS = (
    *(QUESTION, "/?model=x", f"{QUESTION}&copy=slurm", "/learn?under=pp&at=9"),
    *("/runs", "/run?name=runs/live", "/run?name=runs/first&show=plan", "/compare?run=runs/first&run=runs/live"),
)


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
        self.page.on(
            "request", lambda asked: self.complaints.append(asked.url) if not asked.url.startswith(url) else None
        )
        self.page.add_init_script(
            "window.shifted = 0; new PerformanceObserver((list) => { for (const one of list.getEntries())"
            " if (!one.hadRecentInput) window.shifted += one.value; }).observe({type: 'layout-shift', buffered: true});"
        )

    def open(self, path: str) -> None:
        self.page.goto(self.url + path)
        self.page.wait_for_selector("html.scripted")

    def until(self, true: str) -> None:
        """Waits until an expression is true; Playwright's own waiting is refused by the page's policy (eval)."""
        until = time.monotonic() + 20
        while not self.page.evaluate(true):
            assert time.monotonic() < until, true
            time.sleep(0.02)

    def type(self, field: str, text: str) -> None:
        """By keyboard, as a person does."""
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_question_is_asked_changed_and_taken_back(browser: Any, served: Served, width: int, scheme: str) -> None:
    tab = Tab(browser, served.url, width=width, scheme=scheme)
    tab.open(QUESTION)
    assert "Fits: " in tab.verdict(has="tokens/s")
    page = tab.page
    tab.type("#length", "2048")
    page.keyboard.press("Tab")
    tab.until("document.querySelector('#answer .facts').textContent.includes('2048')")
    assert "length=2048" in page.url
    page.select_option("#goal", "cheapest")
    page.wait_for_url("**goal=cheapest**")
    page.go_back()
    tab.until("document.getElementById('goal').value === 'fastest'")
    page.go_back()
    tab.until("document.getElementById('length').value === '1024'")
    tab.until("document.querySelector('#answer .facts').textContent.includes('1024')")
    page.go_forward()
    tab.until("document.querySelector('#answer .facts').textContent.includes('2048')")
    page.click("#which")
    assert "on 1x" in page.inner_text("#answer h1") or "fits on" in tab.verdict(has=" ")
    page.wait_for_selector("#answer h2:text('Hardware')")
    page.click("#copy-command")
    tab.until("document.getElementById('copied-1').textContent.startsWith('shardwise plan --model')")
    assert page.input_value("#hardware") == "any"
    tab.assert_calm()
    page.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_bad_input_is_said_beside_its_field(browser: Any, served: Served, width: int) -> None:
    tab = Tab(browser, served.url, width=width)
    tab.open(QUESTION)
    page = tab.page
    tab.type("#length", "many")
    tab.until("document.getElementById('wrong-length').textContent.includes(\"expected a whole number\")")
    assert page.get_attribute("#length", "aria-invalid") == "true"
    below = page.evaluate(
        "document.getElementById('wrong-length').getBoundingClientRect().top -"
        " document.getElementById('length').getBoundingClientRect().bottom"
    )
    assert 0 <= below < 40
    tab.type("#length", "512")
    tab.until("document.getElementById('wrong-length').textContent.trim() === ''")
    tab.verdict(has="tokens/s")
    assert page.get_attribute("#length", "aria-invalid") == "false"
    tab.assert_calm(refused=5)
    page.close()


def test_the_slider_answers_while_it_is_dragged(browser: Any, served: Served) -> None:
    tab = Tab(browser, served.url)
    tab.open(QUESTION)
    tab.verdict(has="tokens/s")
    slider = tab.page.locator("input[data-slides=length]")
    box = slider.bounding_box()
    assert box is not None
    tab.page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + box["height"] / 2)
    tab.page.mouse.down()
    for share in (0.3, 0.35, 0.4, 0.45, 0.5):
        tab.page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] / 2)
        tab.page.wait_for_timeout(60)
    value = tab.page.input_value("#length")
    tab.until(f"document.querySelector('#answer .facts').textContent.includes('{value}')")
    tab.page.mouse.up()
    assert int(value) > 1024
    assert f"length={value}" in tab.page.url
    tab.assert_calm()
    tab.page.close()


def test_everything_is_done_by_keyboard_alone(browser: Any, served: Served) -> None:
    tab = Tab(browser, served.url)
    tab.open(QUESTION)
    page = tab.page
    tab.verdict(has="tokens/s")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    seen: list[str] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.slice(0, 20)"))
        if seen[-1] == "copy-command":
            break
    for name in ("model", "config", "method", "hardware", "which", "length", "batch", "rank", "rows", "goal", "layout"):
        assert name in seen
    page.keyboard.press("Enter")
    tab.until("document.getElementById('copied-1').textContent.startsWith('shardwise plan')")
    assert page.evaluate("document.activeElement.id") == "copy-command", "the focus stays where it was"
    tab.type("#batch", "32")
    tab.until("document.querySelector('#answer .facts').textContent.includes('32 sequences')")
    assert page.evaluate("document.activeElement.id") == "batch"
    page.goto(served.url + "/learn?under=fsdp")
    page.wait_for_selector("html.scripted")
    for moment in (2, 3):
        page.keyboard.press("ArrowRight")
        page.wait_for_url(f"**at={moment}")
        tab.until(f"document.querySelector('#moment label').textContent.startsWith('Moment {moment} ')")
    page.keyboard.press("ArrowLeft")
    page.wait_for_url("**at=2")
    tab.assert_calm()
    page.close()


def test_a_config_is_dropped(browser: Any, served: Served, tmp_path: Path) -> None:
    tab = Tab(browser, served.url)
    tab.open(QUESTION)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    tab.page.set_input_files("#config", file)
    tab.until("document.querySelector('#answer .eyebrow').textContent.includes('config.json')")
    assert tab.page.input_value("#model").startswith("config.json:")
    file.write_text("{")
    tab.page.set_input_files("#config", file)
    tab.until("document.getElementById('wrong-model').textContent.includes('is not JSON')")
    tab.assert_calm(refused=1)
    tab.page.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_live_run_is_followed_to_its_end(browser: Any, tmp_path: Path, width: int) -> None:
    folder = fill(tmp_path / "folder")
    live = RunMaker(root=folder / "runs/live", job=make_job(method="full"))
    with serving(folder) as found:
        tab = Tab(browser, found.url, width=width)
        tab.open("/runs")
        tab.page.click("a:text('runs/live')")
        tab.page.wait_for_selector("text=step 5 of 50")
        tab.page.wait_for_selector(".plot canvas")
        tab.page.click("#report details summary")

        def go_on() -> None:
            for step in range(6, 51):
                live.stepped(range(step, step + 1))
                time.sleep(0.1)
            live.measured().ended()

        writing = threading.Thread(target=go_on)
        writing.start()
        tab.until("/step ([1-4]\\d) of 50/.test(document.querySelector('#report .outcome').textContent)")
        assert tab.page.evaluate("document.querySelector('#report details').open"), "what was opened stays open"
        tab.page.wait_for_selector("text=Finished at step 50", timeout=30_000)
        writing.join()
        tab.page.wait_for_selector("#events li")
        assert tab.page.locator(".live").count() == 0
        assert tab.page.locator(".plot canvas").count() == 4
        tab.page.goto(found.url + "/runs")
        for name in ("runs/first", "runs/live"):
            tab.page.check(f"input[value='{name}']")
        tab.page.click("text=Put side by side")
        tab.page.wait_for_selector("text=Runs side by side")
        tab.page.wait_for_selector(".plot canvas")
        tab.assert_calm()
        tab.page.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", PATHS)
def test_no_page_is_wider_than_its_window_or_shifts(browser: Any, served: Served, path: str, width: int) -> None:
    tab = Tab(browser, served.url, width=width)
    tab.open(path)
    tab.page.wait_for_timeout(300)
    tab.assert_calm(refused=1)
    tab.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PATHS)
def test_axe_finds_nothing_serious(browser: Any, served: Served, path: str, scheme: str) -> None:
    if not AXE.is_file():
        pytest.skip("needs axe-core: npm install --no-save axe-core, or SHARDWISE_AXE")
    tab = Tab(browser, served.url, scheme=scheme, width=1280)
    tab.open(path)
    tab.page.wait_for_timeout(300)
    tab.page.evaluate(AXE.read_text(encoding="utf-8"))
    found = tab.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [
        (one["id"], node["target"], node.get("failureSummary"))
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]
    assert serious == []
    tab.page.close()
