"""Chat templates and tokenizers from strangers may refuse to work, but take neither the machine nor the run."""

import json
import time
from pathlib import Path

import pytest

from shardwise.data.workers.pool import WorkerLimits
from shardwise.units import MIB
from tests.unit.data.helpers import refused, write_jsonl

LIMITS = WorkerLimits(memory_bytes=256 * MIB, cpu_seconds=2)

BOMBS = {
    "memory at compile time": ("{{ 'a' * 10**10 }}", "needs more than 256 MiB of memory"),
    "memory while rendering": ("{% for m in messages %}{{ m.content * 10**9 }}{% endfor %}", "needs more than 256 MiB"),
    "time": (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "took more than 2 s of processor time; shorten the rows or replace the chat template",
    ),
    "escape": ("{{ cycler.__init__.__globals__.os.popen('id') }}", "the chat template refuses this row"),
    "syntax": ("{% for m in messages %}", "is no chat template: Unexpected end of template"),
    "filter": (
        "\n{{ messages | nofilter }}",
        "is no chat template: No filter named 'nofilter'. (line 2 of the template)",
    ),
}

#: Those that need a row.
AT_A_ROW = ("memory while rendering", "escape")


@pytest.mark.parametrize("name", BOMBS)
def test_a_hostile_template_ends_in_a_sentence_within_its_limits(tmp_path: Path, plain_model: Path, name: str) -> None:
    template, message = BOMBS[name]
    (tmp_path / "template.jinja").write_text(template)
    path = write_jsonl(tmp_path / "rows.jsonl", [{"question": "q", "answer": "a"}] * 3)
    data = {"path": str(path), "chat_template": str(tmp_path / "template.jinja")}
    started = time.monotonic()
    places = {"data.chat_template": "job.yaml:9"}
    said = str(refused(tmp_path / "run", model=plain_model, data=data, places=places, limits=LIMITS))
    assert time.monotonic() - started < 60
    place = f"{path}:1: " if name in AT_A_ROW else f"job.yaml:9: data.chat_template: {tmp_path / 'template.jinja'}: "
    assert said.startswith(place)
    assert "\n" not in said or name == "escape"  # once, and not once per row
    assert message in said


def test_rows_that_end_a_worker_do_not_hide_what_is_wrong_elsewhere(tmp_path: Path, plain_model: Path) -> None:
    (tmp_path / "template.jinja").write_text("{% for m in messages %}{{ m.content * 10**9 }}{% endfor %}")
    hostile = [write_jsonl(tmp_path / f"{name}.jsonl", [{"question": "q", "answer": "a"}]) for name in "ac"]
    wrong = write_jsonl(tmp_path / "b.jsonl", [{"question": "q", "answer": 5}])
    data = {"path": [str(hostile[0]), str(wrong), str(hostile[1])], "chat_template": str(tmp_path / "template.jinja")}
    error = refused(tmp_path / "run", model=plain_model, data=data, limits=LIMITS, workers=2)
    said = {problem.where: problem.message for problem in error.problems}
    assert said[f"{wrong}:1"].startswith("answer is 5; expected text")
    assert said[f"{hostile[0]}:1"].startswith("this row or one after it needs more than 256 MiB of memory")


def test_a_tokenizer_that_names_code_of_its_own_runs_none(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"auto_map": {"AutoConfig": "evil.Config"}, "model_type": "evil"}))
    auto = {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}, "tokenizer_class": "EvilTokenizer"}
    (model / "tokenizer_config.json").write_text(json.dumps(auto))
    (model / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    path = write_jsonl(tmp_path / "rows.jsonl", [{"text": "a b"}])
    error = refused(tmp_path / "run", model=model, data={"path": str(path)})
    assert "has no tokenizer that can be loaded" in str(error)
    assert not (tmp_path / "ran").exists()


def test_an_enormous_row_is_refused_without_being_held(tmp_path: Path, plain_model: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "a b"}\n{"text": "' + b"x" * (20 * MIB) + b'"}\n')
    error = refused(tmp_path / "run", model=plain_model, data={"path": str(path)})
    assert f"{path}:2: this row is longer than 16 MiB; a row holds one training example" in str(error)
