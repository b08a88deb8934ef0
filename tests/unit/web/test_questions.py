"""A hundred questions in a row: processor time of an answer, and memory of the server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.web.served import Served

#: Processor seconds in which 95 of 100 answers are there, with room for a machine that does much else meanwhile.
MOST_SECONDS = 0.6
#: What the server may grow by, once it has answered the first thirty: its caches are full then.
MOST_GROWTH = 32 * 1024**2


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.timed
def test_a_hundred_questions_in_a_row_are_answered_soon_and_leave_nothing_behind(served: Served) -> None:
    pid, taken, before = served.process.pid, list[float](), 0
    for number in range(100):
        question = {"model": "llama-3.1-8b", "method": ("lora", "full")[number % 2], "hardware": "8x H100-SXM"}
        question |= {"length": str(512 + 64 * number), "batch": str(8 + number % 11), "rank": str(8 + number % 7)}
        began = processor_seconds(pid)
        assert served.get("/", **question).status == 200
        taken.append(processor_seconds(pid) - began)
        before = resident_bytes(pid) if number == 30 else before
    assert sorted(taken)[94] < MOST_SECONDS
    assert resident_bytes(pid) - before < MOST_GROWTH
    known = processor_seconds(pid)
    assert served.get("/", **question).status == 200
    assert processor_seconds(pid) - known < 0.3 * sorted(taken)[50], "a question that has been answered is remembered"
