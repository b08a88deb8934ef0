#!/usr/bin/env bash
# Two trainings of a WordPiece or Unigram tokenizer on the same text give the tokens other IDs.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""tokenizers 0.23.3: WordPieceTrainer and UnigramTrainer go over their words in the order of a
hash that is another one at each training. Two trainings on the same text give the tokens other
IDs: a model that was trained with one of the vocabularies reads other words with the next. There
is no seed. BpeTrainer and WordLevelTrainer give the same each time.
"""

from tokenizers import Tokenizer, __version__, models, pre_tokenizers, trainers

WORDS = "hello world training model language test number 12345 3.14 tokens lower Upper weights layer".split()
TEXT = [" ".join(WORDS[(7 * row + 5 * place * place) % len(WORDS)] for place in range(8)) for row in range(400)]


def vocabulary(model, trainer, cut):
    """All tokens, in the order of their IDs."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = cut
    tokenizer.train_from_iterator(TEXT, trainer)
    found = tokenizer.get_vocab()
    return sorted(found, key=found.get)


def word_piece():
    trainer = trainers.WordPieceTrainer(vocab_size=80, special_tokens=["[UNK]"], show_progress=False)
    return vocabulary(models.WordPiece(unk_token="[UNK]"), trainer, pre_tokenizers.Whitespace())


def unigram():
    trainer = trainers.UnigramTrainer(vocab_size=50, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    return vocabulary(models.Unigram(), trainer, pre_tokenizers.Metaspace())


def bpe():
    trainer = trainers.BpeTrainer(vocab_size=80, show_progress=False)
    return vocabulary(models.BPE(), trainer, pre_tokenizers.Whitespace())


def words():
    trainer = trainers.WordLevelTrainer(vocab_size=10, special_tokens=["[UNK]"], show_progress=False)
    return vocabulary(models.WordLevel(unk_token="[UNK]"), trainer, pre_tokenizers.Whitespace())


print(f"tokenizers {__version__}, 12 trainings on the same text:")
for train, same in ((word_piece, False), (unigram, False), (bpe, True), (words, True)):
    found = [train() for _ in range(12)]
    moved = max(sum(a != b for a, b in zip(found[0], other, strict=True)) for other in found[1:])
    distinct = len({tuple(one) for one in found})
    print(f"  {train.__name__}: {distinct} vocabularies, up to {moved} of {len(found[0])} IDs stand for another token")
    assert (distinct == 1) == same
PYTHON
