from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from shardwise.cli.plan_table import LETTERS, memory_bar, print_plan, ranks_text, why
from shardwise.report.plan_page import plan_html
from shardwise.spec.layout import Layout
from shardwise.spec.plan import PARTS, Plan, RankMemory, Rejection
from tests.unit.cli.plans import nothing_fits, plan


def drawn(made: Plan, *, width: int, terminal: bool = False) -> str:
    file = io.StringIO()
    colours = "truecolor" if terminal else None
    print_plan(made, Console(file=file, width=width, force_terminal=terminal, color_system=colours, highlight=False))
    return file.getvalue()


# ruff: noqa: E501 - the table is as wide as it is

EXPECTED = """\
m (8.03B parameters, 42M trained), lora, on 4x RTX-6000-Ada: 32 sequences of at most 1024 tokens a step

    strategy  layout          batch  recompute        peak  memory of one GPU                 step  tokens/s   GPU    cost
->  fsdp      dp_shard=4        4x2  none         30.0 GiB  [WWWGOOOOOOAAAAL.........]      1.50 s       21k  93 %  $12.50
    ddp       dp_replicate=4    4x2  none       60.0 GiB !  [WWWWWWGGGOOOOOOOOOOOOAAA]AAAL  1.50 s       21k  93 %  $12.50
"""


def test_the_table_as_a_whole() -> None:
    text = drawn(plan(), width=130)
    assert text.startswith(EXPECTED), text
    assert "chosen: fsdp (dp_shard=4)\n  - it is the fastest of 2 that fit\n" in text
    assert "the whole run takes about 2 h 00 min and costs $12.50" in text
    assert text.count("tp (tp=4): tp is not trained by this version") == 1


def test_what_is_to_be_said_of_the_hardware_stands_above_the_table_and_on_the_page() -> None:
    made = plan()
    noted = replace(made, hardware={**made.hardware, "notes": ["GPU 0: 50.0 GiB are held by <python> (pid 1)"]})
    lines = drawn(noted, width=120).splitlines()
    assert lines[1] == "  ! GPU 0: 50.0 GiB are held by <python> (pid 1)"
    assert "50.0 GiB are held by &lt;python&gt; (pid 1)" in plan_html(noted, None)


def test_offloads_have_a_column_where_there_are_any() -> None:
    made = plan()
    first = replace(made.candidates[0], execution=replace(made.candidates[0].execution, offload="parameters"))
    lines = drawn(replace(made, candidates=(first, *made.candidates[1:])), width=150).splitlines()
    heads, *rows = (line[: line.index("peak")] if "peak" in line else line for line in lines[2:5])
    assert heads.rstrip().endswith("recompute  offload")
    assert [row.split()[5 if row.startswith("->") else 4] for row in rows] == ["parameters", "none"]
    costless = drawn(replace(made, candidates=(first, *made.candidates[1:])), width=114).splitlines()[2]
    assert ("offload" in costless, "cost" in costless) == (True, False)
    assert "offload" not in drawn(made, width=150).split("chosen:")[0]
    assert "offload" not in drawn(replace(made, candidates=(first,)), width=80).split("chosen:")[0]


def test_strategies_that_are_left_out_for_one_reason_share_its_line() -> None:
    made = plan()
    other = Rejection(strategy="cp", layout=Layout(cp=4), reason=made.rejected[0].reason)
    text = drawn(replace(made, rejected=(*made.rejected, other)), width=130)
    assert "\n  tp (tp=4), cp (cp=4): tp is not trained by this version\n" in text


def test_a_narrow_terminal_gets_fewer_columns_and_no_broken_rows() -> None:
    lines = drawn(plan(), width=80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert any(line.startswith("->  fsdp") and line.rstrip().endswith("93 %") for line in lines)


def test_a_pipe_gets_no_escape_codes_and_a_terminal_gets_colours() -> None:
    assert "\x1b" not in drawn(plan(), width=120)
    assert "\x1b[" in drawn(plan(), width=120, terminal=True)


def test_when_nothing_fits_that_is_the_verdict() -> None:
    assert "nothing fits on 4x RTX-6000-Ada" in drawn(nothing_fits(), width=120)


@pytest.mark.parametrize(
    ("weights", "optimizer", "expected"),
    [
        (0, 0, "[..........]"),
        (50, 0, "[WWWWW.....]"),
        (50, 50, "[WWWWWOOOOO]"),
        (120, 0, "[WWWWWWWWWW]WW"),
        (50, 100, "[WWWWWOOOOO]OOOO"),
        (1, 1, "[..........]"),
        (10**9, 10**9, "[WWWWWWWWWW]WWWW"),
    ],
)
def test_a_bar_ends_where_the_peak_is(weights: int, optimizer: int, expected: str) -> None:
    rank = RankMemory(ranks=(0,), peak_bytes=weights + optimizer, parts={"weights": weights, "optimizer": optimizer})
    assert memory_bar(rank, capacity=100, width=10).plain == expected


def test_every_part_of_memory_has_a_letter_of_its_own() -> None:
    assert set(LETTERS) == set(PARTS)
    assert len({letter for letter, _ in LETTERS.values()}) == len(PARTS)


def test_the_length_of_a_packed_run_is_said_to_count_rows() -> None:
    said = "; each row counts as one sequence, of which packing makes fewer"
    made = plan()
    assert not why(made)[-1].endswith(said)
    packed = replace(made, job={**made.job, "data": {**made.job["data"], "packing": True}})
    assert why(packed)[-1] == f"{why(made)[-1]}{said}"


def test_ranks_are_written_as_spans() -> None:
    assert ranks_text([0]) == "0"
    assert ranks_text([3, 0, 1, 2]) == "0-3"
    assert ranks_text([0, 2, 5, 6]) == "0, 2, 5-6"


def test_a_forecast_of_what_is_not_trained_is_not_called_chosen() -> None:
    made = plan()
    best = replace(made.candidates[0], not_trained=("method qlora is not trained by this version",))
    text = drawn(replace(made, candidates=(best, *made.candidates[1:])), width=120)
    assert "forecast only: fsdp (dp_shard=4)\n  - PLANNED, NOT TRAINED: method qlora is not trained" in text
