"""What `verify` and `compare` print, and how they exit."""

import json
from dataclasses import replace
from typing import Any

import pytest

from shardwise import api
from shardwise.report.parity import Parity, agreement, failed
from shardwise.report.versus import Failed, Versus, ranked
from tests.unit.report.test_versus import ran

COUNTS = {"step": 1, "tokens": 1, "trained_tokens": 1}
RECORD = {**COUNTS, "epoch": 1.0, "learning_rate": 0.1, "loss": 2.0, "grad_norm": 1.0}
WEIGHTS = {"relative": 0.0, "first": None}
EXCUSED = {"name": "model.norm.weight", "relative": 9.3e-5, "absolute": 2e-6}


def parity(*, agrees: bool) -> Parity:
    records: Any = {"reference": [RECORD], "found": [{**RECORD, "loss": 2.000002}]}
    same = agreement("ddp-2", processes=2, run="ddp-2", **records, weights=WEIGHTS, tolerance=1e-5)
    broken = failed("fsdp-2", processes=2, run="fsdp-2", reason="rank 1 failed")
    changes = ("train.precision is fp32 here, mixed in the job: why",)
    layouts, unable = (same,) if agrees else (same, broken), (("tp-2", "tp is not trained"),)
    run: Any = {"reference": "single-1", "num_steps": 1, "tolerance": 1e-5}
    return Parity(**run, changes=changes, layouts=layouts, unable=unable)


@pytest.mark.parametrize("agrees", [True, False])
def test_verify_prints_the_table_and_exits_by_the_verdict(agrees, shardwise, monkeypatch) -> None:
    asked: dict[str, object] = {}
    monkeypatch.setattr(api, "verify", lambda job, **options: asked.update(options) or parity(agrees=agrees))
    said = shardwise("verify", "job.yaml", "--layouts", "ddp, fsdp,tp", "--steps", "7", "--tolerance", "1e-4")
    assert said.code == (2 if agrees else 1), "tp was named, and cannot run"
    assert (asked["layouts"], asked["steps"], asked["tolerance"]) == (["ddp", "fsdp", "tp"], 7, 1e-4)
    assert "train.precision is fp32 here, mixed in the job: why" in said.out
    assert "ddp-2             2      1  1.0e-06      exact    exact  none" in said.out
    assert "cannot run here: tp-2: tp is not trained" in said.out
    assert ("fsdp-2 did not train: rank 1 failed" in said.out) is not agrees
    rows = [line.split()[-1] for line in said.out.splitlines() if line.startswith("fsdp-2 ")]
    assert ("failed" in rows) is not agrees
    plain = shardwise("verify", "job.yaml", "--json")
    assert plain.code == (0 if agrees else 1), "nobody named it"
    assert json.loads(plain.out)["agrees"] is agrees


@pytest.mark.parametrize(
    ("weights", "cell", "said"),
    [
        ({"worst": "a", "relative": 7.8e-6}, "7.8e-06", False),
        ({"excused": EXCUSED}, "9.3e-05", True),
        ({"worst": "a", "relative": 7.8e-6, "excused": EXCUSED}, "7.8e-06", True),
        (None, "-", False),
    ],
)
def test_weights_that_differ_are_not_called_exact(weights, cell, said, shardwise, monkeypatch) -> None:
    found = parity(agrees=True)
    (row,) = found.layouts
    row = replace(row, weights=weights and {**WEIGHTS, **weights})
    monkeypatch.setattr(api, "verify", lambda job, **_: replace(found, layouts=(row,)))
    shown = shardwise("verify", "job.yaml").out
    line = next(line for line in shown.splitlines() if line.startswith("ddp-2 "))
    assert line.split()[-2:] == [cell, "none"]
    sentence = (
        "ddp-2: model.norm.weight differs by 9.3e-05 relative to its norm, which is less than a tolerance of all that "
        "sgd's steps changed together"
    )
    assert (sentence in " ".join(shown.split())) is said


@pytest.mark.parametrize(("flags", "asked"), [((), None), (("--all",), ["all"]), (("--layouts", "all"), ["all"])])
def test_verify_tries_one_of_each_kind_and_says_how_to_try_all(flags, asked, shardwise, monkeypatch) -> None:
    given: dict[str, object] = {}
    monkeypatch.setattr(api, "verify", lambda job, **options: given.update(options) or parity(agrees=True))
    said = shardwise("verify", "job.yaml", *flags)
    assert given["layouts"] == asked
    assert ("--all tries every way" in said.out) is (asked is None)
    assert "keep one" in shardwise.refused("verify", "job.yaml", "--all", "--layouts", "ddp")


@pytest.mark.parametrize("verb", ["verify", "compare"])
@pytest.mark.parametrize("as_json", [False, True])
def test_each_layout_is_named_as_it_begins_and_json_is_alone_on_stdout(as_json, verb, shardwise, monkeypatch, tmp_path):
    one = ran(tmp_path, "ddp-2", seconds=2.0)
    answers = {"verify": replace(parity(agrees=True), unable=()), "compare": Versus(contenders=(one,), job="tiny")}

    def trying(_job: str, **options: Any) -> object:
        options["on_update"](api.Trying(layout="ddp-2", number=2, total=7))
        return answers[verb]

    monkeypatch.setattr(api, verb, trying)
    said = shardwise(verb, "job.yaml", "--layouts", "ddp", *(["--json"] if as_json else []))
    assert said.code == 0
    assert "ddp-2 (2 of 7)" in (said.err if as_json else said.out).splitlines()
    if as_json:
        assert json.loads(said.out)["version"] == 1


def test_compare_prints_measured_above_forecast_and_the_fastest(shardwise, monkeypatch, tmp_path) -> None:
    asked: dict[str, object] = {}
    layouts = [ran(tmp_path, name, seconds=s) for name, s in (("fsdp-2", 3.0), ("ddp-2", 2.0))]
    found = Versus(contenders=ranked(layouts), job="tiny")
    monkeypatch.setattr(api, "compare", lambda job, **options: asked.update(options) or found)
    said = shardwise("compare", "job.yaml", "--layouts", "fsdp,ddp", "--steps", "9")
    assert said.code == 0
    assert (asked["layouts"], asked["steps"]) == (["fsdp", "ddp"], 9)
    lines = said.out.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("ddp-2 "))
    assert "2.00 s" in lines[at] and lines[at + 1].startswith("  forecast ")
    assert lines[at + 2].startswith("fsdp-2 ")
    assert "ddp-2: rank 0: 90.0 % busy" in said.out
    assert "ddp-2 is the fastest: 2.00 s per step, 1.50 times as fast as fsdp-2" in said.out
    assert shardwise("compare", "job.yaml").code == 2
    found = replace(found, unable=(("tp-2", "tp is not trained"),))
    said = shardwise("compare", "job.yaml", "--layouts", "ddp,tp")
    assert said.code == 2, "tp was named, and cannot run"
    assert "cannot run here: tp-2: tp is not trained" in said.out
    assert "ddp-2 is the fastest" in said.out, "what ran stands"


@pytest.mark.parametrize("names", [("ddp-2",), ()])
def test_compare_prints_what_stands_beside_a_layout_that_failed_and_exits_1(names, shardwise, monkeypatch, tmp_path):
    lost = Failed(layout="fsdp-2", run=str(tmp_path / "fsdp-2"), reason="rank 1 was ended by signal 9\nits log: x")
    found = Versus(contenders=ranked([ran(tmp_path, name, seconds=2.0) for name in names]), job="tiny", failed=(lost,))
    monkeypatch.setattr(api, "compare", lambda job, **options: found)
    said = shardwise("compare", "job.yaml", "--layouts", "fsdp,ddp")
    assert said.code == 1
    assert [line.split() for line in said.out.splitlines() if line.startswith("fsdp-2 ")] == [["fsdp-2", "failed"]]
    assert "failed: fsdp-2: rank 1 was ended by signal 9\nits log: x" in said.out
    assert ("ddp-2 is the fastest: 2.00 s per step; fsdp-2 failed" in said.out) is bool(names)
    assert "compare.html" in said.out
    plain = shardwise("compare", "job.yaml", "--layouts", "fsdp,ddp", "--json")
    assert plain.code == 1
    assert json.loads(plain.out)["failed"][0]["layout"] == "fsdp-2"


def test_a_micro_batch_is_tried_on_one_machine(shardwise) -> None:
    said = shardwise.refused("train", "job.yaml", "--find-batch", "--nodes", 2, "--node-rank", 0, "--master", "n0")
    assert said == "error: --find-batch tries steps on one machine; leave it out, or --nodes\n"
