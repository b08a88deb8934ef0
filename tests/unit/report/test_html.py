"""The page is well formed, self-contained and safe, and shows the figures of the report."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from shardwise.report.collect import collect
from shardwise.report.html import report_html
from shardwise.report.text import table_rows
from shardwise.spec.run import write_json
from tests.unit.report.runs import FORECAST_PARTS, RunMaker, finished_run, make_job

HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>&amp;\x1b[31m\ud800"
HTML_TAGS = """
    html head meta title style body main header section div p span h1 h2 h3 ul li dl dt dd table thead tbody tr th td
    code pre mark figure figcaption strong footer
"""
SVG_TAGS = "svg title desc rect line path circle text"
ALLOWED = {*HTML_TAGS.split(), *SVG_TAGS.split()}


class Page(HTMLParser):
    """Tags, attributes and text of a page; refuses tags that do not close in order."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
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
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(self.text)


def assert_safe(page: Page, source: str) -> None:
    assert set(page.tags) <= ALLOWED
    names = {name for name, _ in page.attributes}
    assert not {name for name in names if name.startswith("on")}
    assert not names & {"style", "src", "href", "xlink:href", "action", "srcdoc"}
    assert not re.search(r"https?://|url\(|@import", source)
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", source)


def test_the_page_parses_and_asks_for_nothing(tmp_path: Path) -> None:
    source = report_html(collect(finished_run(tmp_path / "run")))
    assert_safe(Page(source), source)


def test_the_content_policy_allows_the_pages_own_style_and_nothing_else(tmp_path: Path) -> None:
    source = report_html(collect(finished_run(tmp_path / "run")))
    contents = [value or "" for name, value in Page(source).attributes if name == "content"]
    found = next(value for value in contents if value.startswith("default-src"))
    style = source.split("<style>")[1].split("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert ("http-equiv", "Content-Security-Policy") in Page(source).attributes
    assert found == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_hostile_names_are_text_wherever_they_stand(tmp_path: Path) -> None:
    job = make_job(model=HOSTILE.replace("\ud800", ""), hardware=HOSTILE.replace("\ud800", ""))
    maker = RunMaker(root=tmp_path / "<b>run", job=job).planned(parts={**FORECAST_PARTS, HOSTILE: 5})
    maker.prepared(
        preview=[{"where": HOSTILE, "text": [[HOSTILE, True], ["</pre></mark>", False]]}]
    ).started().stepped()
    write_json(maker.run.environment, {"torch": HOSTILE, HOSTILE: HOSTILE, "world_size": 2})
    write_json(maker.run.rank_failure(0), {"time": 9e9, "rank": HOSTILE, "error": HOSTILE, "message": HOSTILE})
    source = report_html(collect(maker.run))
    page = Page(source)
    assert_safe(page, source)
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert page.words.count("<script>alert('x')</script>") >= 6
    source.encode("utf-8")


def test_every_figure_of_the_table_stands_on_the_page(tmp_path: Path) -> None:
    report = collect(finished_run(tmp_path / "run"))
    words = Page(report_html(report)).words
    for row in table_rows(report):
        assert all(part in words for part in (row.forecast, row.measured, row.error)), row
    for figure in ("1,001", "62,003", "99,600", "812", "200,000", "+16.7 %", "80.0 GiB"):
        assert figure in words


def test_trained_tokens_are_marked_and_others_are_not(tmp_path: Path) -> None:
    source = report_html(collect(finished_run(tmp_path / "run")))
    assert "<span>user: what is 2+2?\n</span><mark>4</mark>" in source


@pytest.mark.parametrize("stage", ["planned", "started", "one step", "all steps"])
def test_every_stage_of_a_run_has_a_page(tmp_path: Path, stage: str) -> None:
    maker = RunMaker(root=tmp_path / "run").planned()
    if stage != "planned":
        maker.started()
    if "step" in stage:
        maker.stepped(range(1, 2 if stage == "one step" else 51))
    source = report_html(collect(maker.run))
    assert_safe(Page(source), source)
    assert "not measured" in source
    assert "nan" not in source


def test_ids_are_unique_and_every_chart_is_named_for_screen_readers(tmp_path: Path) -> None:
    page = Page(report_html(collect(finished_run(tmp_path / "run"))))
    ids = [value for name, value in page.attributes if name == "id"]
    referred = {value for name, value in page.attributes if name in ("aria-labelledby", "aria-describedby")}
    assert len(ids) == len(set(ids))
    assert referred
    assert referred <= set(ids)
    assert page.tags.count("svg") == len(referred) / 2


def test_a_large_world_shows_the_ranks_that_need_most(tmp_path: Path) -> None:
    source = report_html(collect(finished_run(tmp_path / "run", world_size=512)))
    assert "8 of 512 ranks" in source
    assert len(source) < 200_000


def test_a_long_example_is_cut_and_says_so(tmp_path: Path) -> None:
    maker = RunMaker(root=tmp_path / "run").planned()
    maker.prepared(preview=[{"where": "a:1", "text": [["x" * 10**6, True], ["y", True]]}] * 20)
    report = collect(maker.run)
    assert len(report.examples) == 5
    assert report.examples[0].cut
    assert len(report_html(report)) < 100_000
