"""Small real tokenizers and a cache of the test's own."""

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from shardwise.data.workers.tokens import Tokenizer, load_tokenizer

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"]
CORPUS = ["the cat sat on the mat and the dog sat on the log", "what is two and two? four. hello! how are you?"] * 8


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARDWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a byte-level BPE tokenizer that has no chat template."""
    return _save(tmp_path_factory.mktemp("plain"), template=None)


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tokenizer with a ChatML template."""
    return _save(tmp_path_factory.mktemp("chat"), template=CHATML)


@pytest.fixture(scope="session")
def plain(plain_model: Path) -> Tokenizer:
    return load_tokenizer(str(plain_model))


@pytest.fixture(scope="session")
def chat(chat_model: Path) -> Tokenizer:
    return load_tokenizer(str(chat_model))


def _save(folder: Path, *, template: str | None) -> Path:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"special_tokens": SPECIAL, "initial_alphabet": alphabet, "show_progress": False}
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, **options))
    known = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "chat_template": template}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **known).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 400}))
    return folder
