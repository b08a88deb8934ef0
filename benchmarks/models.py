"""The models that `run.py` trains: random weights, and a tokenizer trained on the rows.

python benchmarks/models.py mixture FOLDER --rows rows.jsonl [--toy]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from pairs import MARKS, WORDS
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).parent.parent / "examples/demo"))
from make_model import make_tokenizer

#: Of each kind its family and what its configuration says: parameters of 25, 34, 25 and 25 million; a toy's width.
#: `words` has a vocabulary of 32,000.
KINDS: dict[str, tuple[str, dict[str, Any], int]] = {
    "dense": (
        "llama",
        {
            "hidden_size": 512,
            "intermediate_size": 1344,
            "num_hidden_layers": 6,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
        },
        128,
    ),
    "mixture": (
        "qwen3_moe",
        {
            "hidden_size": 256,
            "moe_intermediate_size": 384,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "norm_topk_prob": True,
        },
        64,
    ),
    "hybrid": (
        "qwen3_5_text",
        {
            "hidden_size": 448,
            "intermediate_size": 1152,
            "num_hidden_layers": 8,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
        },
        64,
    ),
    "words": (
        "llama",
        {
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
        },
        64,
    ),
}


def word_tokenizer() -> PreTrainedTokenizerFast:
    """Of the words of `pairs.py`, one token each."""
    words = {mark: at for at, mark in enumerate(MARKS)} | {f"w{at}": at for at in range(len(MARKS), WORDS)}
    pad, bos, eos = MARKS
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=pad))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, bos_token=bos, eos_token=eos, unk_token=pad
    )


def main() -> None:
    """Reads the command line, makes and saves the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=tuple(KINDS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--toy", action="store_true", help="narrow, of two layers")
    args = parser.parse_args()
    family, sizes, narrow = KINDS[args.kind]
    if args.toy:
        sizes = sizes | {"hidden_size": narrow, "num_hidden_layers": 2}
    tokenizer = word_tokenizer() if args.kind == "words" else make_tokenizer([args.rows], vocabulary_size=8000)
    ends = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    config = AutoConfig.for_model(
        family, vocab_size=len(tokenizer), max_position_embeddings=1024, tie_word_embeddings=False, **sizes, **ends
    )
    torch.manual_seed(7)
    model: Any = AutoModelForCausalLM.from_config(config)
    logging.disable_progress_bar()
    model.save_pretrained(args.folder)
    tokenizer.save_pretrained(args.folder)
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print(f"{args.folder}: {family} with {millions:.1f}M random parameters, vocabulary of {len(tokenizer)}")


if __name__ == "__main__":
    main()
