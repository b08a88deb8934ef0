"""A job over real rows with a real tokenizer, whose model can be planned."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.configs import config
from tests.unit.data.conftest import chat_model
from tests.unit.data.helpers import write_jsonl

__all__ = ["asked", "chat_model", "rows"]

LLAMA = {"architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
LLAMA |= {"torch_dtype": "float32", "max_position_embeddings": 4096}
CONFIG = config("llama", 32, 64, 2, 4, 2, vocab=400, **LLAMA)
WORDS = "the cat sat on the mat and the dog sat on the log"
JobMaker = Callable[..., Path]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """30 short chats and 10 growing ones, in a file with a column that nobody reads."""
    texts = [f"{number}?" for number in range(30)] + [f"{WORDS} " * (number + 1) for number in range(10)]
    chats = [[{"role": "user", "content": text}, {"role": "assistant", "content": text.upper()}] for text in texts]
    return write_jsonl(tmp_path / "rows.jsonl", [{"messages": chat, "id": 1} for chat in chats])


@pytest.fixture
def asked(tmp_path: Path, rows: Path, chat_model: Path, monkeypatch: pytest.MonkeyPatch) -> JobMaker:
    """A job file over these rows, with other keys of `data`."""
    monkeypatch.setenv("SHARDWISE_CACHE", str(tmp_path / "cache"))
    model = tmp_path / "model"
    shutil.copytree(chat_model, model)
    (model / "config.json").write_text(json.dumps(CONFIG))

    def write(**data: Any) -> Path:
        job = {"model": str(model), "data": {"path": str(rows), "max_length": 1024, **data}}
        job |= {"train": {"global_batch_size": 4}, "hardware": "cpu:1", "output_dir": str(tmp_path / "run")}
        path = tmp_path / "job.yaml"
        path.write_text(json.dumps(job, indent=1))
        return path

    return write
