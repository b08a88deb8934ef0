"""`shardwise chat` on a terminal, in pipes and by programs; a fault ends its turn alone."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shardwise.errors import InputError
from shardwise.spec.run import RunDirectory, write_json
from shardwise.train.chatting import Chat, Reply
from tests.dist.cells import execution, save_cell
from tests.dist.worlds import run_world, said_by

QUESTION = [{"role": "user", "content": "red green"}]
TOO_LONG = "red " * 2500
SECONDS = 120
PROMPT = r"> (\x1b\[\?2004h)?$"


@pytest.fixture(scope="module")
def run(make_job: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A finished run of a model that seldom ends its answers by itself."""
    job = make_job("of many positions", train={"max_steps": 2, "learning_rate": 1e-4})
    made = save_cell(job, tmp_path_factory.mktemp("chats") / "run", execution())
    write_json(made.outcome, {"outcome": "finished"})
    return made


def _command(run: RunDirectory, *options: str) -> list[str]:
    return [sys.executable, "-m", "shardwise", "chat", str(run.root), *options]


class _Terminal:
    """What a person at a terminal types and sees."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._seen = descriptor, ""

    def types(self, keys: bytes) -> None:
        while keys:
            self._read(0)
            keys = keys[os.write(self._descriptor, keys[:512]) :]

    def sees(self, pattern: str) -> str:
        """Waits for a text; what was shown up to its end."""
        end = time.monotonic() + SECONDS
        while (found := re.search(pattern, self._seen)) is None:
            assert time.monotonic() < end, f"no {pattern!r} in {self._seen[-2000:]!r}"
            self._read(0.1)
        shown, self._seen = self._seen[: found.end()], self._seen[found.end() :]
        return shown

    def interrupts(self, echo: str) -> None:
        """Types Ctrl-C once what was typed is at work."""
        self.sees(echo)
        time.sleep(0.5)
        self.types(b"\x03")
        self.sees("stopped; this turn is left out of the conversation, Ctrl-D ends the session")
        self.sees(PROMPT)

    def _read(self, seconds: float) -> None:
        if select.select([self._descriptor], [], [], seconds)[0]:
            self._seen += os.read(self._descriptor, 65536).decode(errors="replace")


@contextmanager
def _session(*command: str) -> Iterator[tuple[_Terminal, list[int]]]:
    """A program on a terminal of its own; its exit code is there after."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.execve(command[0], command, {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"})
    codes: list[int] = []
    try:
        yield _Terminal(descriptor), codes
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    finally:
        os.close(descriptor)  # hangs up


@pytest.mark.slow
def test_a_conversation_on_a_terminal_outlives_whatever_goes_wrong_in_a_turn(run) -> None:
    with _session(*_command(run, "--max-new-tokens", "1500")) as (terminal, codes):
        assert "one question a line; an empty line begins a new conversation" in terminal.sees(PROMPT)
        refused = {
            TOO_LONG.encode(): r"the conversation has [\d,]+ tokens, and the model reads 2,048; write a shorter prompt",
            b"r\xffd": "this line is not UTF-8 text, and was not asked",
        }
        for line, said in refused.items():
            terminal.types(line + b"\n")
            terminal.sees(f"error: {said}")
            terminal.sees(PROMPT)
        # The last is the question before.
        for keys, echo in ((b"red green\n", "red green"), (b"half a line",) * 2, (b"\x1b[A\n", "red green")):
            terminal.types(keys)
            terminal.interrupts(echo if isinstance(echo, str) else echo.decode())
        terminal.types(b"\x04")
    assert codes == [0]


@pytest.mark.slow
def test_every_line_of_a_pipe_has_a_line_of_json_and_a_bad_one_stops_none(run) -> None:
    lines = [b"red green", b"r\xffd", b"", TOO_LONG.encode(), b"red green"]
    command = _command(run, "--json", "--max-new-tokens", "5")
    done = subprocess.run(command, input=b"\n".join(lines), capture_output=True, check=False, timeout=SECONDS)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["prompt"] for one in found] == ["red green", None, "", TOO_LONG.strip(), "red green"]
    assert found[0] == found[4]
    assert found[0] == {"prompt": "red green", "answer": found[0]["answer"], "tokens": 5, "stopped": "length"}
    assert found[2] == {"prompt": "", "answer": "", "tokens": 0, "stopped": None}
    assert [one["answer"] for one in found[1:4:2]] == [None, None]
    said = done.stderr.decode().splitlines()
    assert said[0] == f"error: {found[1]['error']}" == "error: this line is not UTF-8 text, and was not asked"
    assert said[1] == f"error: {found[3]['error']}"
    assert "tokens, and the model reads 2,048" in said[1]
    assert (done.returncode, len(said)) == (1, 2)


@pytest.mark.slow
def test_a_reader_that_closes_the_pipe_is_no_fault(run, tmp_path) -> None:
    questions = tmp_path / "questions"
    questions.write_text("red green\n" * 200)
    command = " ".join(_command(run, "--json", "--max-new-tokens", "5"))
    script = f"{command} < {questions} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=SECONDS)
    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == ["0"]


def _drawn(run: RunDirectory, template: str) -> tuple[dict[str, Reply], list[str], int]:
    """Answers by how they are drawn; refusals of a system message; tokens that one adds."""

    def chat(**how: Any) -> Chat:
        made = Chat(run, "trained", max_new_tokens=12, **{"temperature": 1.5, **how})
        made.load([*made.opening, *QUESTION])
        return made

    one = chat(seed=3)
    answers = {"first": one.answer(QUESTION), "again": one.answer(QUESTION), "other": chat(seed=4).answer(QUESTION)}
    answers |= {"apart": chat(seed=3).answer(QUESTION), "likeliest": chat(seed=3, top_p=1e-6).answer(QUESTION)}
    answers["greedy"] = chat(temperature=0.0).answer(QUESTION)
    told = Chat(run, "trained", max_new_tokens=12, temperature=0.0, system="be brief")
    added = told.room([*told.opening, *QUESTION])[0]["input_ids"].shape[1] - one.room(QUESTION)[0]["input_ids"].shape[1]
    refusals: list[str] = []
    for text in (template, "{{ raise_exception('no system here') }}"):
        told._tokenizer.chat_template = text
        refusals.append(said_by(InputError, told.load, [*told.opening, *QUESTION]))
    return answers, refusals, added


def test_draws_follow_the_seed_and_a_system_message_is_written_or_refused(run) -> None:
    template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    answers, refusals, added = run_world(1, _drawn, run, template)[0]
    assert answers["first"] == answers["again"] == answers["apart"] != answers["other"]
    assert answers["likeliest"] == answers["greedy"] != answers["first"]
    assert added > 3
    assert refusals == [
        "the chat template writes no system message; leave --system out",
        "the chat template refuses the conversation: no system here; write another",
    ]


def _ended(run: RunDirectory) -> tuple[Reply, Reply]:
    """An answer, and the same where its third token ends it."""
    one = Chat(run, "trained", max_new_tokens=6, temperature=0.0)
    one.load(QUESTION)
    whole = one.answer(QUESTION, aloud=False)
    made = one._model.generate(**one.room(QUESTION)[0], max_new_tokens=6, do_sample=False)
    one._model.generation_config.eos_token_id = int(made[0, -4])
    return whole, one.answer(QUESTION, aloud=False)


def test_an_answer_says_how_many_tokens_it_has_and_what_ended_it(run) -> None:
    whole, ended = run_world(1, _ended, run)[0]
    assert (whole.tokens, whole.stopped) == (6, "length")
    assert (ended.tokens, ended.stopped) == (2, "stop")
    assert whole.text.startswith(ended.text)
