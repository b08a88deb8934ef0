"""The pages in Chromium by Playwright, at three widths, in dark and light, by keyboard alone."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.unit.report.runs import RunMaker, make_job
from tests.unit.web.browser import WIDTHS, Tab
from tests.unit.web.conftest import CONFIG, fill
from tests.unit.web.served import Served, serving

pytestmark = pytest.mark.slow
QUESTION = "/?model=tinyllama-1.1b&method=lora&hardware=2x+RTX-4090&length=1024&batch=8&rank=16"
QUESTION += "&goal=fastest&layout=auto"
NOTHING_FITS = QUESTION.replace("lora", "full").replace("tinyllama-1.1b", "llama-3.1-70b")
PATHS = (
    *(f"{QUESTION}&copy=slurm", NOTHING_FITS, f"{QUESTION}&solve=gpus", QUESTION.replace("2x+RTX-4090", "any")),
    *("/?model=x", "/learn?under=pp&at=9&gpus=8", "/runs", "/run?name=runs/first", "/run?name=runs/live"),
    *(QUESTION.replace("/?", "/learn?under=own&at=3&"), f"{QUESTION}&task=generate"),
    *("/run?name=runs/first&show=plan", "/compare?run=runs/first&run=runs/live", "/run?name=none"),
)


@pytest.fixture
def opened(browser: Any, served: Served) -> Iterator[Callable[..., Tab]]:
    """Opens a page of the server, in a tab that is closed behind the test."""
    with ExitStack() as tabs:
        yield lambda path, **look: tabs.enter_context(Tab(browser, served.url, **look)).open(path)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_question_is_asked_changed_and_taken_back(opened, width: int, scheme: str) -> None:
    tab = opened(QUESTION, width=width, scheme=scheme)
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
    page.wait_for_selector("#answer h2:text('Hardware')")
    if width == 390:
        page.click("#copies summary")
    page.click("#copy-command")
    tab.until("document.getElementById('copied-1').textContent.startsWith('shardwise plan --model')")
    assert page.input_value("#hardware") == "any"
    tab.assert_calm()


@pytest.mark.parametrize("width", WIDTHS)
def test_bad_input_is_said_beside_its_field(opened, width: int) -> None:
    tab = opened(QUESTION, width=width)
    page = tab.page
    tab.type("#length", "many")
    tab.until("document.getElementById('wrong-length').textContent.includes(\"expected a whole number\")")
    assert page.get_attribute("#length", "aria-invalid") == "true"
    assert page.inner_text("#verdict") == "The question has an error: see Tokens per sequence."
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


@pytest.mark.parametrize("width", WIDTHS)
def test_the_slider_answers_in_sight_while_it_is_dragged(opened, width: int) -> None:
    tab = opened(QUESTION, width=width)
    tab.verdict(has="tokens/s")
    tab.page.click("section:has(h2:text('Memory of one')) summary:text('Values')")
    slider = tab.page.locator("input[data-slides=length]")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    tab.page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + box["height"] / 2)
    tab.page.mouse.down()
    for share in (0.3, 0.35, 0.4, 0.45, 0.5):
        tab.page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] / 2)
        tab.page.wait_for_timeout(60)
    value = tab.page.input_value("#length")
    tab.until(f"document.querySelector('#answer .facts').textContent.includes('{value}')")
    seen = tab.page.locator("#verdict").bounding_box()
    assert seen["y"] + seen["height"] <= 900, "the answer is on the same screen"
    tab.page.mouse.up()
    assert int(value) > 1024
    opened = tab.page.locator("#answer details:not(.fold)[open]").count()
    assert opened == 1, "what was opened stays open, and nothing else"
    assert f"length={value}" in tab.page.url
    tab.assert_calm()


def test_everything_is_done_by_keyboard_alone(opened, served) -> None:
    tab = opened(QUESTION)
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
    page.goto(served.url + "/runs")
    page.wait_for_selector("html.scripted")
    for ticked in range(2):
        for _ in range(10):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.matches('input:not(:checked)')"):
                break
        page.keyboard.press("Space")
        assert page.locator("input:checked").count() == ticked + 1
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:text('Runs side by side')")
    tab.assert_calm()


def test_a_config_is_dropped(opened, tmp_path: Path) -> None:
    tab, file = opened(QUESTION), tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    tab.page.set_input_files("#config", file)
    tab.until("document.querySelector('#answer .eyebrow').textContent.includes('config.json')")
    assert tab.page.input_value("#model").startswith("config.json:")
    whole = tab.page.inner_text("#answer .facts")
    changed = json.dumps({**CONFIG, "num_hidden_layers": 2})
    tab.page.evaluate(
        "text => { const held = new DataTransfer(); held.items.add(new File([text], 'config.json'));"
        " const event = new DragEvent('drop', { dataTransfer: held, bubbles: true, cancelable: true });"
        " document.querySelector('.drop').dispatchEvent(event); }",
        changed,
    )
    tab.until(f"document.querySelector('#answer .facts').textContent !== {json.dumps(whole)}")
    assert "219M parameters" in tab.page.inner_text("#answer .facts")
    file.write_text("{")
    tab.page.set_input_files("#config", file)
    tab.until("document.getElementById('wrong-model').textContent.includes('is not JSON')")
    tab.assert_calm(refused=1)


def test_a_list_that_is_told_anew_keeps_what_is_ticked_and_focused(opened, served) -> None:
    tab = opened("/runs")
    tab.page.check("input[value='runs/first']")
    tab.page.focus("a:text('runs/live')")
    RunMaker(root=served.folder / "runs/live", job=make_job(method="full")).stepped(range(6, 8))
    tab.until("document.querySelector('tr:has(a[href$=live]) .number').textContent === '7'")
    assert tab.page.is_checked("input[value='runs/first']")
    assert tab.page.evaluate("document.activeElement.textContent") == "runs/live"
    tab.assert_calm()


def test_a_server_that_is_gone_is_said_until_it_is_back(browser: Any, tmp_path: Path) -> None:
    folder, words = fill(tmp_path / "folder"), "textContent.includes('does not answer')"
    with serving(folder) as found, Tab(browser, found.url) as live, Tab(browser, found.url) as asked:
        live.open("/run?name=runs/live")
        asked.open(QUESTION)
        os.kill(found.process.pid, signal.SIGINT)
        found.process.wait(20)
        live.until(f"document.getElementById('live').{words}")
        asked.type("#batch", "16")
        asked.until(f"document.getElementById('verdict').{words}")
        with serving(folder, "--port", str(found.port)):
            live.until(f"!document.getElementById('live').{words}")
            asked.type("#batch", "24")
            assert "Fits: " in asked.verdict(has="tokens/s")


@pytest.mark.parametrize("path", PATHS)
def test_a_page_fits_its_window_stays_in_place_and_is_accessible(opened, path: str) -> None:
    for width, scheme in zip(WIDTHS, ("light", "light", "dark"), strict=True):
        tab = opened(path, width=width, scheme=scheme)
        tab.page.wait_for_timeout(200)
        tab.assert_calm(refused=1)
        if width != 1280:
            tab.assert_accessible()


def test_rows_of_a_dropped_file_are_counted_in_the_browser(opened, tmp_path: Path) -> None:
    rows = [json.dumps({"messages": [{"role": "user", "content": "x" * 400}]}) for _ in range(1234)]
    (tmp_path / "chats.jsonl").write_text("\n".join([*rows, json.dumps({"text": "y" * 40_000})]) + "\n\n")
    (tmp_path / "rows.csv").write_text('prompt,answer\n"two\nlines, one row",b\nc,d\n')
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    tab = opened(QUESTION)
    posted: list[str] = []
    tab.page.on("request", lambda asked: posted.append(asked.method))
    tab.page.set_input_files("#data", tmp_path / "chats.jsonl")
    tab.until("document.getElementById('rows').value === '1235'")
    said = tab.page.inner_text("#counted")
    assert "1,235 rows, about 109 tokens each" in said
    assert "longest 10,000; 0.081 % are longer than 1,024" in said
    assert "nothing was sent" in said
    tab.until("document.querySelector('#answer .run')?.textContent.includes('1,235 rows')")
    tab.page.set_input_files("#data", tmp_path / "rows.csv")
    tab.until("document.getElementById('rows').value === '2'")
    tab.page.set_input_files("#data", tmp_path / "rows.parquet")
    tab.until("document.getElementById('counted').textContent.includes('cannot be counted')")
    assert set(posted) == {"GET"}
    tab.assert_calm()


def test_a_step_plays_by_keyboard_at_a_speed_below_controls_that_stay(opened) -> None:
    tab = opened("/learn?under=fsdp", width=390)
    page = tab.page
    page.select_option("#gpus", "8")
    tab.until("document.querySelectorAll('.seat').length === 8")
    page.select_option("[data-speed]", "225")
    page.focus("[data-play]")
    page.keyboard.press("Enter")
    tab.until("+document.getElementById('at').value > 3")
    assert "gpus=8" in page.url
    page.keyboard.press("Enter")
    assert page.inner_text("[data-play]") == "Play"
    page.evaluate("scrollTo(0, 900)")
    assert page.evaluate("document.querySelector('.steps').getBoundingClientRect().top") == 0
    assert page.evaluate("document.querySelector('.steps').getBoundingClientRect().height") < 200
    tab.assert_calm()


def test_a_task_is_chosen_and_fields_of_the_other_are_not_shown(opened) -> None:
    tab = opened(QUESTION)
    tab.page.select_option("#task", "generate")
    assert "Generating fits on 2x RTX-4090" in tab.verdict(has="Generating")
    assert not tab.page.is_visible("#goal")
    tab.page.click("#copy-command")
    tab.until("document.getElementById('copied-1').textContent.endsWith('--task generate')")
    tab.page.select_option("#task", "train")
    tab.verdict(has="tokens/s")
    assert tab.page.is_visible("#goal")
    tab.page.click("#steps a[data-page]")
    tab.page.wait_for_selector("h1:text('One step of')")
    tab.assert_calm()


@pytest.mark.parametrize(
    ("path", "width", "most"),
    [("/run?name=runs/first", 390, 3300), ("/run?name=runs/first", 1280, 2200), ("/", 390, 3000), ("/", 1280, 2700)],
)
def test_a_page_is_short_and_no_table_is_cut(opened, path: str, width: int, most: int) -> None:
    cut = "[...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth).length"
    tab = opened(path, width=width)
    tab.page.wait_for_timeout(200)
    assert tab.page.evaluate("document.documentElement.scrollHeight") < most
    tab.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true;")
    assert width < 1280 or tab.page.evaluate(cut) == 0
    assert ("Last written " in tab.page.inner_text("#answer, #report")) == path.startswith("/run"), "how old it is"


def test_what_is_folded_on_a_phone_stays_as_it_was_put(opened) -> None:
    fold = "#answer details.fold:has(h2:text('One step of'))"
    tab = opened(QUESTION, width=390)
    tab.page.wait_for_selector(f"{fold}:not([open])")
    tab.page.click(f"{fold} > summary")
    tab.type("#batch", "16")
    tab.until("document.querySelector('#answer .facts').textContent.includes('16 sequences')")
    assert tab.page.locator(f"{fold}[open]").count() == 1
    assert tab.page.locator("#answer details.fold:not([open])").count() == 1
    tab.assert_calm()
    tab.page.click("#what-if")
    tab.page.wait_for_selector("h2:text('What if')")
    assert tab.page.is_visible("th:text('One GPU fewer')")
