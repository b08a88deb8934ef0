"""`make accuracy-gpu` on toy models and a processor: one rank allocates what was rehearsed."""

import time

import pytest

from accuracy.grid import alone
from accuracy.grid.cells import LARGE, LAYOUTS
from accuracy.grid.elsewhere import elsewhere, measured_alone
from shardwise.errors import ShardwiseError

#: What the kernel of attention's backward on a processor works in, which is not rehearsed.
_ATTENTION = 256 * 1024
_LAYOUTS = ("fsdp 4", "1f1b")


@pytest.mark.slow
def test_a_rank_that_is_alone_allocates_what_is_rehearsed_and_holds_what_is_forecast(tmp_path, capsys):
    small = [cell for cell in alone.cells("cpu") if (cell.layout, cell.method) in [(x, "full") for x in _LAYOUTS]]
    alone.measure(small, device="cpu", out=tmp_path / "alone.csv", over=time.monotonic() + 600)
    found = [one for _, one in measured_alone(tmp_path / "alone.csv")]
    assert [one.cell.layout for one in found] == ["fsdp 4", "1f1b", "1f1b"]
    assert all(one.exact for one in found), "weights and optimizer states, to the byte"
    for one in found:
        rehearsed, beside = one.measured.rehearsed, 0.001 * one.measured.peak
        assert -beside <= one.measured.peak - rehearsed <= beside + _ATTENTION
    assert found[0].measured.weights < found[1].measured.weights, "a quarter, and a half"
    assert elsewhere(tmp_path).count("\n| ") == 2 + len(_LAYOUTS)
    assert "left out: experts: " in capsys.readouterr().out


def test_every_layout_but_those_left_out_is_measured_in_time_or_named(tmp_path, capsys) -> None:
    assert elsewhere(tmp_path) == "", "without files the page has no such sections"
    cells = alone.cells("cuda")
    assert {cell.layout for cell in cells} == LAYOUTS.keys() - alone.LEFT_OUT.keys()
    assert {cell.method for cell in cells} == {"full", "lora", "qlora"}
    assert {cell.family for cell in cells} == set(LARGE)
    alone.measure(alone.cells("cpu")[:1], device="cpu", out=tmp_path / "alone.csv", over=time.monotonic() - 1)
    assert "left out: llama, full, single, 2 x 128 tokens" in capsys.readouterr().out
    assert len((tmp_path / "alone.csv").read_text().splitlines()) == 1


@pytest.mark.slow
def test_a_rank_that_fails_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(alone, "build", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("no kernel image")))
    with pytest.raises(ShardwiseError, match="RuntimeError: no kernel image"):
        alone.rows_of(alone.cells("cpu")[0], device="cpu", folder=tmp_path)
