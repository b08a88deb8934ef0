"""A slice of docs/families.md is true: what `tools/families.py` wrote of a family is what it finds today."""

import json
from pathlib import Path
from typing import Any

import pytest
from tools.families import SHOWN, TABLE, page
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.dist.every_family import make_rows, put
from tests.dist.worlds import run_world

#: One of each trait: scans, linear attention beside attention, several values from a block, bare weights, a head of
#: several layers, indexed attention, an encoder.
SLICE = ("mamba", "qwen3_5_text", "openai-gpt", "apertus", "modernbert-decoder", "deepseek_v32", "bert")


def _put(family: str, root: Path) -> dict[str, Any]:
    return put(family, root / "model", make_rows(root / "rows.jsonl"), ways=SHOWN)


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in SLICE if family in CONFIG_MAPPING])
def test_a_line_of_the_table_is_what_a_run_finds(family, tmp_path) -> None:
    known = json.loads(TABLE.read_text())["families"]
    assert run_world(1, _put, family, tmp_path)[0] == known[family]


def test_the_page_is_written_from_the_table() -> None:
    assert TABLE.with_suffix(".md").read_text() == page(json.loads(TABLE.read_text()))


@pytest.mark.parametrize("family", ["lfm2", "bart"])
def test_a_hybrid_is_counted_and_trained_and_what_is_no_decoder_refused(family, tmp_path) -> None:
    found = run_world(1, _put_quickly, family, tmp_path)[0]
    if family == "bart":
        assert "it is the decoder of an encoder-decoder" in found["refused"]
        return
    assert found["planned"] == found["count"]
    assert found["cells"] == {"full/single": "equal", "full/pp": "equal", "lora/single": "equal", "lora/pp": "equal"}


def _put_quickly(family: str, root: Path) -> dict[str, Any]:
    return put(family, root / "model", make_rows(root / "rows.jsonl"), ways=("single", "pp"))
