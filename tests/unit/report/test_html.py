"""The page is well formed, self-contained and safe, and says the report's figures and outcome."""

import base64
import hashlib
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from shardwise.cli.after import print_report
from shardwise.cli.console import make_console
from shardwise.report import pages
from shardwise.report.collect import collect
from shardwise.report.contents import RunOutcome
from shardwise.report.pages.render import safe_json
from shardwise.report.pages.run_page import report_html
from shardwise.spec.run import RunDirectory, read_json, write_json
from tests.unit.report.runs import FORECAST_PARTS, RunMaker, finished_run, make_job, make_plan

HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>&amp;\x1b[31m\ud800"
STRUCTURE = "html head meta title style body main header section div footer details summary script figure figcaption"
WORDS = "p span h1 h2 h3 ul li dl dt dd table thead tbody tr th td code pre mark strong svg rect line text g progress"
ALLOWED = {*STRUCTURE.split(), *WORDS.split()}
STATIC = Path(pages.__file__).parents[1] / "static"
LICENCE = STATIC.joinpath("uplot.LICENSE.txt").read_text()
UPLOT = f"/*!\n{LICENCE.strip()}\n*/\n{STATIC.joinpath('uplot.min.js').read_text().strip()}\n"
SCRIPTS = {UPLOT, STATIC.joinpath("page.js").read_text()}


class Page(HTMLParser):
    """Tags, attributes, text and scripts of a page; refuses tags that do not close in order."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" in self._open:
            self.scripts.append(data)
        elif "style" not in self._open:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(self.text)


def safe_page(source: str) -> Page:
    """The page, which has nothing but what its own policy allows."""
    page = Page(source)
    assert set(page.tags) <= ALLOWED
    names = {name for name, _ in page.attributes}
    assert not {name for name in names if name.startswith("on")}
    assert not names & {"style", "src", "href", "xlink:href", "action", "srcdoc"}
    assert set(page.scripts) <= SCRIPTS | {script for script in page.scripts if script.startswith("[{")}
    own = source
    for script in page.scripts:
        own = own.replace(script, "")
    assert not re.search(r"https?://|url\(|@import", own)
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", own)
    return page


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_content_policy_allows_the_pages_own_style_and_scripts_and_nothing_else(run: RunDirectory) -> None:
    source = report_html(collect(run))
    page = safe_page(source)
    contents = [value or "" for name, value in page.attributes if name == "content"]
    found = next(value for value in contents if value.startswith("default-src"))
    style = source.split("<style>")[1].split("</style>")[0]
    data, *scripts = page.scripts
    assert data.startswith("[{"), "data is no script: no policy has to allow it"
    assert ("http-equiv", "Content-Security-Policy") in page.attributes
    assert found == (
        f"default-src 'none'; script-src {' '.join(map(digest, scripts))}; style-src {digest(style)}; "
        "base-uri 'none'; form-action 'none'"
    )


def test_scripts_ask_for_nothing_and_run_no_text_and_json_cannot_leave_its_own() -> None:
    for script in SCRIPTS:
        assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|import|eval|Function|innerHTML)\b *\(?[^a-z ]", script)
    assert "MIT License" in UPLOT
    assert "Copyright (c) 2022 Leon Sorokin" in UPLOT
    data = {"name": "</script><!--\u2028&\ud800"}
    written = safe_json(data)
    assert json.loads(written) == data
    assert written.isascii()
    assert not set("<>&") & set(written)


def test_hostile_names_are_text_wherever_they_stand(tmp_path: Path) -> None:
    job = make_job(model=HOSTILE.replace("\ud800", ""), hardware=HOSTILE.replace("\ud800", ""))
    maker = RunMaker(root=tmp_path / "<b>run", job=job).planned(parts={**FORECAST_PARTS, HOSTILE: 5})
    preview = [{"where": HOSTILE, "text": [[HOSTILE, True], ["</pre></mark>", False]]}]
    maker.prepared(preview=preview).started().stepped()
    data = read_json(maker.run.data) or {}
    data["train"]["sources"] = [{"path": HOSTILE, "ignored_columns": [HOSTILE], "notes": {HOSTILE: 3}}]
    data["ends"] = {"tokens": [{"id": 1, "text": HOSTILE, "count": 1}], "unmarked": 0, "cause": None}
    write_json(maker.run.data, data)
    write_json(maker.run.environment, {"torch": HOSTILE, HOSTILE: HOSTILE, "world_size": 2})
    write_json(maker.run.rank_failure(0), {"time": 9e9, "rank": HOSTILE, "error": HOSTILE, "message": HOSTILE})
    source = report_html(collect(maker.run))
    page = safe_page(source)
    assert page.tags.count("script") == 3
    assert "img" not in page.tags
    assert page.words.count("<script>alert('x')</script>") >= 10
    source.encode("utf-8")
    out = io.StringIO()
    print_report(collect(maker.run), make_console(out))
    assert "alert" in out.getvalue() and "\x1b" not in out.getvalue()


def test_every_figure_of_the_table_stands_on_the_page(tmp_path: Path) -> None:
    report = collect(finished_run(tmp_path / "run", world_size=512))
    source = report_html(report)
    words = Page(source).words
    for row in report.comparisons:
        written = row.written("forecast", missing="not forecast"), row.written("measured", missing="not measured")
        assert all(part in words for part in written), row
        assert row.off.removeprefix(", ").removesuffix(" what was measured").replace(" %", "\u00a0%") in words
    assert not re.search(r"[a-z]\.[A-Z]", words), "sentences have a space between them"
    for figure in ("1,001", "62,003", "99,600", "812", "200,000", "17\u00a0% above", "10\u00a0% below", "80.0 GiB"):
        assert figure in words
    assert "Loss, gradient norm, learning rate and step time as a table" in words
    assert "weights 10.0 GiB, 45 % of 22.0 GiB" in words, "a segment's title"
    assert "<span>user: what is 2+2?\n</span><mark>4</mark>" in source, "trained tokens are marked"
    assert "8 of 512 ranks" in words
    assert len(source) < 200_000


def test_what_a_forecast_rests_on_is_said_and_nominal_times_are_not_red(run: RunDirectory) -> None:
    padded = "memory is forecast for rows of 816 tokens: the longest has 812; max_length is 1,024"
    assert collect(run).notes == (padded,)
    source = report_html(collect(run))
    assert '<td class="number error far">' in source
    assert "forecast 2.20 s, 10\xa0% above what was measured" in source
    hardware = {"name": "cpu:2", "node": {"gpu": {"kind": "cpu", "measured": False}}}
    write_json(run.plan, {**make_plan(make_job()).to_json(), "hardware": hardware})
    source = report_html(collect(run))
    assert "2.20 s, 10" not in source, "a nominal time is not far from anything"
    assert "Forecast times are nominal: the rates of this machine" in Page(source).words
    rows = re.findall(r"<tr><th.*", source.split("Forecast was</th>")[1].split("</table>")[0])
    assert len(rows) == 10
    assert not [row for row in rows[5:] if "error none" not in row], "times"
    assert {re.findall(r'error none">([^<]*)<', row)[0] for row in rows[5:]} <= {"nominal", "–"}


def test_every_stage_of_a_run_has_a_page(tmp_path: Path) -> None:
    maker = RunMaker(root=tmp_path / "run").planned()
    for go_on, unseen in (lambda: maker, 1), (maker.started, 1), (lambda: maker.stepped(range(1, 2)), 0):
        source = report_html(collect(go_on().run))
        safe_page(source)
        assert (source.count('class="later"'), "not measured" in source, "nan" in source) == (unseen, True, False)


def test_a_long_example_is_cut_and_says_so(maker: RunMaker) -> None:
    maker.prepared(preview=[{"where": "a:1", "text": [["x" * 10**6, True], ["y", True]]}] * 20)
    source = report_html(collect(maker.run))
    assert len(source) - sum(map(len, SCRIPTS)) < 60_000
    assert source.count(" … cut here") == 5


def test_a_run_is_called_by_its_name_with_its_cost_and_what_developers_read_is_folded(run: RunDirectory) -> None:
    report = replace(collect(run), usd_per_hour=90.0)
    seconds = sum(value for _, value in report.curves["step_seconds"].points)
    assert report.usd_so_far == pytest.approx(90 * seconds / 3600)
    source = report_html(report)
    assert f"${report.usd_so_far:.2f}" in Page(source).words
    assert "<h1>run</h1>" in source
    assert '<progress aria-label="Steps" max="50" value="50">' in source
    assert "left.</p>" not in source, "it has ended"
    for heading in ("Job, execution, types", r"\d+ consistency checks", r"\d+ files"):
        assert re.search(rf"<details><summary>{heading}", source), "folded"
    shown = re.sub(r"<details>.*?</details>", "", source.split("<h2>In detail</h2>")[1], flags=re.DOTALL)
    assert not [word for word in ("<table", "<dl", "<pre", "<ul") if word in shown]
    assert '<p class="label">cost' not in report_html(replace(report, usd_per_hour=None))


def test_the_terminal_says_where_a_run_went_on_to_another_length_and_no_name_controls_it(maker: RunMaker) -> None:
    out = io.StringIO()
    print_report(collect(maker.run), make_console(out))
    assert "schedule" not in out.getvalue()
    maker.num_steps = 80
    print_report(collect(maker.began(51).run), make_console(out))
    maker.job = make_job(model="a\x1b]0;title\x07\nb\u009b31m")
    assert collect(maker.planned().run).headline.startswith("a\ufffd]0;title\ufffd b\ufffd31m, lora")
    assert "\nlearning rate schedule: of 50 steps, of 80 steps from step 51 on\n" in out.getvalue()


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (RunOutcome(state="finished", step=50, total_steps=50), "Finished at step 50 of 50."),
        (RunOutcome(state="stopped", step=7, signal="SIGTERM"), "Stopped at step 7 by signal SIGTERM."),
        (RunOutcome(state="failed", step=7, failure="rank 1: no memory"), "Failed after step 7: rank 1: no memory"),
        (RunOutcome(state="unfinished", step=0, phase="loading"), "Still running, or killed: step 0, last phase load"),
        (RunOutcome(state="running", step=7, phase="training"), "Running: step 7, phase training."),
    ],
)
def test_each_end_has_its_sentence(outcome: RunOutcome, sentence: str) -> None:
    assert sentence in outcome.sentence
