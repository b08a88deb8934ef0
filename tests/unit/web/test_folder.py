"""The planner as a folder of files: what refuses to make one, and the very folder in a browser."""

import json
import math
import random
import re
import shlex
import shutil
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from shardwise.errors import InputError
from shardwise.web.folder import export
from shardwise.web.inside import answer
from shardwise.web.question import WebQuestion
from tests.unit.web.browser import Tab
from tests.unit.web.conftest import CONFIG
from tests.unit.web.test_pages import USUAL, random_question

MOST_BYTES, FIRST_SECONDS, WARM_SECONDS = 20e6, 8, 1


def are_same(one: Any, other: Any) -> bool:
    """To 12 digits: from Python 3.12 on, the sum of floats rounds otherwise than before."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(are_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(are_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-12)
    return type(one) is type(other) and one == other


def asked(page: str, **query: str) -> str:
    return answer(page, urlencode(query))[2]


def test_a_folder_with_something_else_is_left_as_it_is(shardwise, tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("mine")
    said = shardwise.refused("serve", "--export", tmp_path)
    assert "exists and is no folder that `shardwise serve --export` made; name another" in said
    assert [file.name for file in tmp_path.iterdir()] == ["own.txt"]


def test_what_is_missing_is_said_and_nothing_is_written(shardwise, tmp_path, monkeypatch) -> None:
    target, tools = tmp_path / "planner", tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    missing = "npm is not installed; `shardwise serve --export` needs Node.js"
    assert missing in shardwise.refused("serve", "--export", target)
    (tools / "npm").write_text("#!/bin/sh\necho no route to the registry >&2\nexit 1\n")
    (tools / "npm").chmod(0o755)
    said = shardwise.refused("serve", "--export", target)
    assert re.search(r"pyodide@\S+ could not be made ready: no route to the registry; is there a network", said)
    assert not target.exists()


def test_pages_of_a_folder_name_no_server_and_what_needs_one_is_refused_in_words() -> None:
    for page in (asked("index.html", **USUAL), asked("index.html", model="x"), asked("learn.html", under="pp", at="9")):
        found = re.findall(r'(?:href|src|action|data-drop)="([^"#?]*)', page)
        assert {name for name in found if name.startswith(("/", "http"))} == set()
        assert "runs" not in found
        assert "ask the hub" not in page
    page = asked("index.html", **USUAL | {"model": "a/b", "hub": "1"})
    assert "this page asks no hub; drop the model&#39;s config.json" in page
    assert "is no model of the catalogue; drop the model&#39;s config.json" in asked("index.html", model="./model")
    status, kind, said = answer("config", "", json.dumps({**CONFIG, "model_type": "unheard"}).encode())
    assert (status, kind) == (400, "text/plain")
    assert "model_type 'unheard' is not known" in said
    status, _, said = answer("config", "", json.dumps(CONFIG).encode())
    assert status == 200
    assert "tinyllama" not in asked("plan.json", **USUAL | json.loads(said))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made as its users make it: npm and pip fetch what is not here."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("needs Node.js with npm: apt-get install nodejs npm")
    made = tmp_path_factory.mktemp("planner") / "planner"
    try:
        export(made, told=lambda _: None)
    except InputError as error:
        if "network" in str(error):
            pytest.skip(f"needs a network: {error}")
        raise
    return made


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


class Files:
    """A web server of a folder, which knows nothing of what is in it."""

    def __init__(self, folder: Path) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def files(folder: Path) -> Iterator[Files]:
    found = Files(folder)
    yield found
    found.stop()


def until_kept(tab: Tab) -> None:
    tab.until("['kept', 'failed'].includes(document.getElementById('state').dataset.state)", seconds=120)
    assert tab.page.inner_text("#state") == "Runs in this browser, and without a network"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_its_answers_are_those_of_the_command_line(browser, files, folder, shardwise) -> None:
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= MOST_BYTES
    compared = 0
    with Tab(browser, files.url) as tab:
        tab.open("/index.html")
        assert "Fits: " in tab.page.inner_text("#verdict"), "the usual question is answered before anything runs"
        until_kept(tab)
        for seed in random.Random(50).sample(range(10_000), 30):
            question = random_question(seed)
            address = f"plan.json?{urlencode(question)}"
            status, text = tab.page.evaluate(
                "async (address) => { const found = await shardwiseGet(address);"
                " return [found.status, await found.text()]; }",
                address,
            )
            command = shlex.split(WebQuestion.of(question).command(question["model"]))
            printed = shardwise(*command[1:], "--json")
            assert (status == 400) == (printed.code == 2), (question, text[:300])
            if status == 200:
                assert are_same(json.loads(text), json.loads(printed.out)), question
                compared += 1
        tab.assert_calm()
    assert compared >= 15


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_is_used_and_goes_on_without_a_network(browser: Any, folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    files = Files(folder)
    with Tab(browser, files.url) as tab:
        tab.open(f"/index.html?{urlencode(USUAL)}")
        until_kept(tab)
        files.stop()
        said = tab.verdict(has="tokens/s")
        tab.page.reload()
        until_kept(tab)
        assert tab.verdict(has="Fits: ") == said
        tab.page.set_input_files("#config", config)
        tab.until("document.querySelector('#answer .eyebrow').textContent.includes('config.json')")
        assert "it stays in this browser" in tab.page.inner_text("#question")
        dropped = tab.page.input_value("#model")
        tab.type("#length", "many")
        tab.until("document.getElementById('wrong-length').textContent.includes('expected a whole number')")
        tab.type("#length", "512")
        tab.until("document.querySelector('#answer .facts')?.textContent.includes('512')")
        tab.page.click("#copy-slurm")
        tab.until("document.getElementById('copied-1').textContent.startsWith('#!/bin/bash')")
        tab.assert_calm(refused=1)
        tab.page.click(".top a:text('Learn')")
        tab.until("document.getElementById('seats') !== null")
        tab.page.keyboard.press("ArrowRight")
        tab.until("document.querySelector('#moment label').textContent.startsWith('Moment 2 ')")
        tab.assert_calm(refused=1)
        for _ in range(2):
            tab.page.go_back()
        tab.until(f"document.getElementById('model')?.value === {json.dumps(dropped)}")
        tab.verdict(has="tokens/s")
        assert "No answer" not in tab.page.inner_text("#answer"), "the dropped file is still there"
        with tab.page.expect_download() as caught:
            tab.page.click("a[download]")
        assert json.loads(Path(caught.value.path()).read_text())["chosen"] == 0


@pytest.mark.slow
@pytest.mark.timed
def test_the_first_answer_comes_in_seconds(browser: Any, files: Files) -> None:
    with Tab(browser, files.url) as tab:
        began = time.monotonic()
        tab.open(f"/index.html?{urlencode(USUAL)}")
        tab.until("!document.documentElement.classList.contains('unanswered')", seconds=120)
        assert time.monotonic() - began <= FIRST_SECONDS
        until_kept(tab)
        began = time.monotonic()
        tab.type("#batch", "16")
        tab.until("document.querySelector('#answer .facts').textContent.includes('16 sequences')")
        assert time.monotonic() - began <= WARM_SECONDS
        tab.assert_calm()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark"), (1920, "light")])
def test_its_pages_fit_their_window_and_are_accessible(browser: Any, files: Files, width: int, scheme: str) -> None:
    for path in (f"/index.html?{urlencode(USUAL)}", "/learn.html?under=pp&at=9"):
        with Tab(browser, files.url, width=width, scheme=scheme) as tab:
            tab.open(path)
            tab.until("!document.documentElement.classList.contains('unanswered')", seconds=120)
            tab.assert_calm()
            tab.assert_accessible()
