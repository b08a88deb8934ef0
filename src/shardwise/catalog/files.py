"""The tokenizer's files of a model folder."""

from __future__ import annotations

from pathlib import Path

#: Patterns of file names, from the tokenizer classes of transformers and their chat templates.
TOKENIZER_PATTERNS = (
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "additional_chat_templates/*",
    "vocab*",
    "merges*",
    "*.model",
    "*.tiktoken",
)


def tokenizer_files(folder: Path) -> list[Path]:
    """The regular tokenizer files of a model folder, by name."""
    return sorted({path for pattern in TOKENIZER_PATTERNS for path in folder.glob(pattern) if path.is_file()})
