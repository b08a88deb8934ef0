"""Makes a small Llama-style model with random weights, and a tokenizer trained on the given rows.

Nothing is downloaded: this stands in for a pretrained model where there is no network. The folder is what
`from_pretrained` loads, so every tool of the ecosystem takes it.

    python examples/demo/make_model.py .demo/model --rows examples/demo/data/basics.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

BEGIN, END, PADDING, USER, ASSISTANT = "<|begin|>", "<|end|>", "<|pad|>", "<|user|>", "<|assistant|>"
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def texts(value: Any) -> Iterator[str]:
    """Every piece of text inside a row, whatever its format."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


def row_texts(paths: Sequence[Path]) -> Iterator[str]:
    """Every piece of text in some JSONL files."""
    for path in paths:
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield from texts(json.loads(line))


def make_tokenizer(paths: Sequence[Path], *, vocabulary_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with a chat template, trained on the text of JSONL files."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[BEGIN, END, PADDING, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(row_texts(paths), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PADDING,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
    )


def make_model(
    tokenizer: PreTrainedTokenizerFast, *, hidden_size: int, num_layers: int, max_length: int, seed: int
) -> LlamaForCausalLM:
    """A Llama with random float32 weights, heads of 64 and a gated MLP of about 8/3 of the width."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=hidden_size * 8 // 3 // 64 * 64,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 64,
        num_key_value_heads=max(1, hidden_size // 128),
        max_position_embeddings=max_length,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def save(folder: Path, *, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Writes the folder that `from_pretrained` loads, and says what it holds."""
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print(f"{folder}: Llama with {millions:.1f}M random parameters, vocabulary of {len(tokenizer)}")


def main() -> None:
    """Reads the command line, makes and saves the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the model folder is written")
    parser.add_argument("--rows", type=Path, nargs="+", required=True, help="JSONL files to train the tokenizer on")
    parser.add_argument("--vocabulary-size", type=int, default=800)
    parser.add_argument("--hidden-size", type=int, default=192)
    parser.add_argument("--num-layers", type=int, default=4)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    tokenizer = make_tokenizer(args.rows, vocabulary_size=args.vocabulary_size)
    model = make_model(
        tokenizer,
        hidden_size=args.hidden_size,
        num_layers=args.num_layers,
        max_length=args.max_length,
        seed=args.seed,
    )
    save(args.folder, model=model, tokenizer=tokenizer)


if __name__ == "__main__":
    main()
