"""Lengths of rows in figures and bins, and the sentences that terminal and pages share."""

import statistics
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.spec.data_facts import MOST_BINS, DataFacts, EndFacts, EndToken, PartFacts, RowLengths, SourceFacts

SOURCE = SourceFacts(path="a.jsonl", format="messages", num_rows=4, weight=0.5)
TRAIN = PartFacts(sources=(SOURCE,), num_rows=4, num_samples=4, num_tokens=100, num_trained_tokens=25, longest=60)
FACTS = DataFacts(train=TRAIN, lengths=RowLengths.of({10: 3, 90: 1}, max_length=60), template_from="tokenizer")


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=200), st.integers(1, 100_000))
def test_figures_are_those_of_numpy_and_each_row_is_in_the_bin_that_its_length_says(lengths, most) -> None:
    found = RowLengths.of(Counter(lengths), max_length=most)
    assert found.mean == pytest.approx(statistics.mean(lengths))
    assert found.median == np.quantile(lengths, 0.5, method="inverted_cdf")
    assert found.p95 == np.quantile(lengths, 0.95, method="inverted_cdf")
    assert (found.longest, found.num_rows) == (max(lengths), len(lengths))
    assert found.num_over == sum(length > most for length in lengths)
    expected = [sum(low <= max(1, length) <= high for length in lengths) for low, high, _ in found.bins]
    assert [rows for _, _, rows in found.bins] == expected
    assert sum(expected) == len(lengths)
    assert all(high <= most or low > most for low, high, _ in found.bins), "no bin reaches across max_length"


def test_bins_are_few_and_shares_never_all_or_nothing_where_they_are_not() -> None:
    assert RowLengths.of({20: 5, 25: 1}, max_length=64).bins == [[19, 20, 5], [21, 22, 0], [23, 24, 0], [25, 26, 1]]
    wide = RowLengths.of({2: 1, 300_000: 1}, max_length=1000)
    assert len(wide.bins) <= MOST_BINS + 4
    assert [513, 1000, 0] in wide.bins and [1001, 1024, 0] in wide.bins
    assert RowLengths.of({}, max_length=64) is None
    lengths = RowLengths.of({10: 99_999, 30: 1}, max_length=20)
    assert next(share for _, _, share in lengths.labelled()) == "99.9 %"
    assert [share for _, _, share in lengths.labelled()][-1] == "100 %"
    assert "20: 1 (0.1 %) of 100,000 rows are longer" in FACTS.over(lengths)


def said(facts: DataFacts) -> dict[str, str]:
    return dict(facts.lines())


def test_what_is_done_with_long_rows_and_what_else_could_be_is_said() -> None:
    refused = "60: 1 (25 %) of 4 rows are longer and are refused (over_long: error). 90 holds all; or set over_long: "
    assert said(FACTS)["max_length"] == f"{refused}truncate or drop"
    assert said(replace(FACTS, over_long="drop"))["max_length"].endswith("longer and are dropped (over_long: drop)")
    cut = replace(FACTS, over_long="truncate")
    assert said(cut)["max_length"].endswith("longer and are cut to it (over_long: truncate)")
    lost = replace(cut, train=replace(TRAIN, num_dropped=1))
    assert said(lost)["max_length"].endswith("1 of them dropped: what is left has nothing trained")
    assert said(replace(FACTS, lengths=RowLengths.of({10: 4}, max_length=60)))["max_length"] == "60: no row is longer"


def test_rows_tokens_template_notes_and_ends_are_said() -> None:
    found = said(FACTS)
    assert found["rows"] == "4 of a.jsonl (messages), weight 0.5"
    assert found["tokens"] == "100 in 4 sequences; trained: 25 (25 %)"
    assert found["lengths"] == "median 10, P95 90, longest 90 tokens; mean 30"
    assert found["template"] == "the tokenizer's own"
    default = replace(FACTS, template_from="default")
    assert said(default)["template"].startswith("the default one: the tokenizer has none")
    assert said(replace(FACTS, template_from="mine.jinja"))["template"] == "mine.jinja (data.chat_template)"
    noted = replace(SOURCE, note="hub data set", notes={"nulls are dropped": 3}, num_ignored_files=2)
    noted = replace(noted, ignored_columns=("id",), ignored_keys=("name",))
    facts = replace(FACTS, train=replace(TRAIN, sources=(noted,)))
    assert [line for name, line in facts.lines()][-5:] == [
        "hub data set",
        "3 rows: nulls are dropped",
        "columns that are not read: id",
        "keys of messages that are not read: name",
        "other files, which are not read: 2",
    ]
    assert "ends in" not in said(FACTS)
    answers = replace(SOURCE, format="prompt_completion", ignored_columns=("label",))
    assert [*answers.said()][1].startswith("all completions are trained alike: which are good, label says under objec")
    assert "template" not in said(replace(FACTS, train=PartFacts(sources=(SourceFacts(path="dpo.jsonl"),))))
    ends = EndFacts(tokens=(EndToken(id=5, text="<|im_end|>", count=7),), unmarked=2)
    assert said(replace(FACTS, ends=ends))["ends in"] == "<|im_end|> (7 answers), no special token (2 answers)"
    cause = EndFacts(unmarked=9, cause="no trained answer ends in a special token: the template writes none")
    assert said(replace(FACTS, ends=cause))["ends in"] == cause.cause


def test_data_json_of_an_earlier_version_and_of_a_later_one_are_read_and_a_damaged_one_is_not() -> None:
    counts = {"num_rows": 10, "num_samples": 5, "num_tokens": 200, "longest": 50}
    earlier = DataFacts.read({"version": 1, "train": counts, "eval": None, "preview": []})
    samples, lengths = earlier.train.known
    assert (samples, lengths.longest, lengths.mean, lengths.document) == (5, 50, 40, 20)
    assert list(earlier.lines()) == [("tokens", "200 in 5 sequences")]
    assert DataFacts.read({"train": counts, "of_tomorrow": {}, "ends": {"tokens": [], "more": 1}}) is not None
    assert DataFacts.read({"train": {"num_rows": "ten"}}) is None and DataFacts.read(None) is None
    assert PartFacts(num_rows=3).known == (None, None)


def test_forecasts_count_the_samples_of_an_epoch_by_the_weights_of_their_files() -> None:
    sources = (SourceFacts(path="a.jsonl", num_rows=8), SourceFacts(path="b.jsonl", num_rows=20, weight=0.5))
    part = PartFacts(sources=sources, num_rows=28, num_samples=28, num_tokens=280, longest=14)
    assert part.known[0] == 18
    assert replace(part, num_samples=14).known[0] == 9
    assert PartFacts(num_samples=3, num_tokens=30, longest=14).known[0] == 3
