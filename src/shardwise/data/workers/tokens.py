"""Rendered rows become token ids with a mask of trained tokens, at most `max_length` long."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwise.data.workers.render import Rendered, Renderer
from shardwise.data.workers.template import Span
from shardwise.errors import DataError, said
from shardwise.spec.job.data import OverLong, TrainOn
from shardwise.spec.job.data import Rendered as IsRendered
from shardwise.spec.run import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Widths = npt.NDArray[np.int32]


def byte_widths(tokenizer: Any) -> Widths | None:
    """For each id the bytes of its token; None where tokens are not cut out of NFC text alone."""
    from transformers import PreTrainedTokenizerFast

    backend = tokenizer.backend_tokenizer
    steps = str(backend.pre_tokenizer)
    is_plain = (
        type(tokenizer)._encode_plus is PreTrainedTokenizerFast._encode_plus
        and type(backend.normalizer).__name__ in ("NoneType", "NFC")
        and type(backend.decoder).__name__ == "ByteLevel"
        and "ByteLevel" in steps
        and "add_prefix_space=True" not in steps
        and "trim_offsets=True" not in str(backend.post_processor)
    )
    if not is_plain:
        return None
    ids = backend.get_vocab(with_added_tokens=True)
    widths = np.zeros(max(ids.values()) + 1, np.int32)
    added = tokenizer.added_tokens_encoder
    for token, ident in ids.items():
        widths[ident] = len(token.encode() if token in added else token)
    return widths


def mask_by_widths(
    ids: npt.NDArray[np.int32], widths: Widths, *, text: str, spans: Sequence[Span]
) -> npt.NDArray[np.bool_] | None:
    """Which tokens overlap a trained span; None where the tokens' bytes are not the text's."""
    own = widths[ids]
    ends = np.cumsum(own)
    is_ascii = text.isascii()
    num_bytes = len(text) if is_ascii else len(text.encode())
    if (ends[-1] if len(ends) else 0) != num_bytes or not (is_ascii or unicodedata.is_normalized("NFC", text)):
        return None
    edges = [[edge if is_ascii else len(text[:edge].encode()) for edge in span] for span in spans]
    begins, stops = np.array(edges, np.int64).reshape(-1, 2).T
    first, last = np.searchsorted(ends, begins, side="right"), np.searchsorted(ends - own, stops, side="left")
    mask = np.zeros(len(ids), bool)
    for start, stop in zip(first, last, strict=True):
        mask[start:stop] = True
    return mask


Ids = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """One row as tokens. `trained`: bool [length], targets; the first never counts, for nothing
    predicts it; `label`: whether it is a good answer, where rows say so."""

    ids: Ids
    trained: Mask
    was_truncated: bool = False
    label: bool = True

    @property
    def num_trained(self) -> int:
        """Labels that count in the loss."""
        return int(np.count_nonzero(self.trained[1:]))


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the job says about turning rows into tokens."""

    template: str | None
    columns: dict[str, str]
    train_on: TrainOn
    max_length: int
    over_long: OverLong
    rendered: IsRendered = "auto"


class Tokenizer:
    """A fast tokenizer of `transformers`, with the facts about it that preparation needs."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, vocab_size: int | None, written: Any = None) -> None:
        self._tokenizer: Any = tokenizer
        self._written = written
        self.vocab_size = vocab_size
        self.eos_id: int = self._tokenizer.eos_token_id
        self._tokenizer("")  # takes padding and truncation away that the file may ask for
        self._widths = byte_widths(self._tokenizer)

    @property
    def template(self) -> str | dict[str, str] | None:
        """Its own chat template, or several by their names."""
        return self._tokenizer.chat_template or None

    @property
    def added_ids(self) -> list[int]:
        """Tokens that no text is cut into by chance: special ones, and others added to the
        vocabulary; but no closing tag (`</tool_call>`), behind which a turn may go on."""
        added = self._tokenizer.added_tokens_decoder.items()
        marks = {ident for ident, token in added if token.special or not token.content.startswith("</")}
        return sorted({self.eos_id, *marks})

    def renderer(self, rules: Rules) -> Renderer:
        """Renders for this tokenizer."""
        # Behind special tokens a text needs no EOS, but behind those that begin or fill it.
        names = ("bos_token", "unk_token", "pad_token", "cls_token", "mask_token")
        other = {text for name, text in self._tokenizer.special_tokens_map.items() if name in names}
        added = self._tokenizer.added_tokens_decoder.values()
        marks = {token.content for token in added if token.special and token.content.strip()} - other
        return Renderer(
            template=rules.template if rules.template is not None else self.template,
            special_tokens=self._tokenizer.special_tokens_map,
            end_marks=tuple(self._tokenizer.added_tokens_encoder),
            train_on=rules.train_on,
            rendered=rules.rendered,
            stop_marks=(self._tokenizer.eos_token, *sorted(marks)),
        )

    def encode(self, texts: Sequence[Rendered]) -> list[Tokens]:
        """Tokenises rows, each as one string; in batches of rows that are treated alike."""
        alike = groupby(texts, key=lambda text: (text.special_tokens, text.spans is not None))
        return [tokens for _, group in alike for tokens in self._encode(list(group))]

    def cuts_otherwise(self, text: str) -> bool:
        """Whether tokenizer.json, if transformers departs from it, has other tokens for a text."""
        if self._written is None:
            return False
        both = (self._written, self._tokenizer.backend_tokenizer)
        written, opened = (tokenizer.encode(text, add_special_tokens=False).ids for tokenizer in both)
        return written != opened

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some tokens, special ones included."""
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _encode(self, texts: list[Rendered]) -> Iterator[Tokens]:
        if self._widths is not None and not texts[0].special_tokens:
            encode = self._tokenizer.backend_tokenizer.encode_batch_fast  # without offsets
            encoded = encode([text.text for text in texts], add_special_tokens=False)
            yield from map(self._by_widths, texts, encoded, repeat(self._widths))
            return
        encoded = self._tokenizer(
            [text.text for text in texts],
            add_special_tokens=texts[0].special_tokens,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        for text, encoding in zip(texts, encoded.encodings, strict=True):
            yield self._row(text, encoding)

    def _by_widths(self, text: Rendered, encoding: Any, widths: Widths) -> Tokens:
        ids = np.array(encoding.ids, np.int32)
        found = mask_by_widths(ids, widths, text=text.text, spans=text.spans) if text.spans is not None else True
        if found is None:
            return self._row(text, self._tokenizer.backend_tokenizer.encode(text.text, add_special_tokens=False))
        row = Tokens(ids=ids, trained=np.ones(len(ids), bool) if found is True else found)
        return self._ended(row) if text.ends else row

    def _row(self, text: Rendered, encoding: Any) -> Tokens:
        if text.spans is None:
            mask = np.ones(len(encoding), bool)
        elif text.special_tokens:
            mask = trained_tokens(encoding.offsets, text.spans)
        else:
            mask = _trained_tokens(encoding, text)
        row = Tokens(ids=np.array(encoding.ids, np.int32), trained=mask)
        if not text.ends and encoding.ids[-1:] == [self.eos_id] and encoding.special_tokens_mask[-1]:
            return replace(row, ids=row.ids[:-1], trained=mask[:-1])  # the tokenizer's own, behind the text's
        return self._ended(row) if text.ends else row

    def _ended(self, row: Tokens) -> Tokens:
        """With EOS behind it, trained; some tokenizers have put one there already."""
        if not len(row.ids) or row.ids[-1] != self.eos_id:
            return Tokens(ids=np.append(row.ids, np.int32(self.eos_id)), trained=np.append(row.trained, True))
        row.trained[-1] = True
        return row


def trained_tokens(offsets: Sequence[Span], spans: Sequence[Span]) -> Mask:
    """Which tokens overlap a trained span; an empty token counts from the end of the one before."""
    if not offsets:
        return np.zeros(0, bool)
    starts, ends = np.array(offsets, np.int64).T
    before = np.concatenate(([0], np.maximum.accumulate(ends)[:-1]))
    starts = np.minimum(starts, before)
    mask = np.zeros(len(ends), bool)
    for start, end in spans:
        mask |= (ends > start) & (starts < end)
    return mask


def _trained_tokens(encoding: Any, text: Rendered) -> Mask:
    """As `trained_tokens`, where only a template wrote special tokens: it looks at the ends of
    spans alone, for a list of all offsets takes longer than anything else."""
    mask = np.zeros(len(encoding), bool)
    for start, end in text.spans or ():
        first, last = _token_at(encoding, start, text=text.text), _token_at(encoding, end, text=text.text)
        while first and encoding.token_to_chars(first - 1)[1] > start:
            first -= 1
        while last and _start(encoding, last - 1) >= end:
            last -= 1
        while last < len(mask) and _start(encoding, last) < end:
            last += 1
        mask[first:last] = True
    return mask


def _token_at(encoding: Any, character: int, *, text: str) -> int:
    """The first token at a character or behind it; some characters belong to none."""
    found = (encoding.char_to_token(at) for at in range(character, len(text)))
    return next((token for token in found if token is not None), len(encoding))


def _start(encoding: Any, token: int) -> int:
    start: int = encoding.token_to_chars(token)[0]
    return min(start, encoding.token_to_chars(token - 1)[1] if token else 0)


def shorten(tokens: Tokens, rules: Rules) -> Tokens | str | None:
    """Applies the policy for long rows: tokens to keep, None if a row is dropped, or its error."""
    length = len(tokens.ids)
    if length > rules.max_length:
        if rules.over_long == "drop":
            return None
        if rules.over_long == "error":
            choice = "raise max_length, or set over_long: truncate or drop"
            return f"has {length} tokens; max_length is {rules.max_length}: {choice}"
        cut = slice(rules.max_length)
        tokens = Tokens(ids=tokens.ids[cut], trained=tokens.trained[cut], was_truncated=True)
    if not length:
        return (
            "has no token: the model's tokenizer makes nothing of its text. Is it the one that the model was made with?"
        )
    if tokens.num_trained:
        return tokens
    return None if tokens.was_truncated else "has no trained token; nothing can be learnt from it. Remove the row"


def load_tokenizer(folder: str) -> Tokenizer:
    """The tokenizer of a model folder; its own code is never run. Raises DataError: there is none,
    it is damaged, or it cannot say which characters a token stands for."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()  # transformers' advice goes to stderr, where this program's sentences stand
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - a stranger's files; the Rust reader raises bare Exception
        file = "config.json" if isinstance(error, StrictDataclassError) else "tokenizer"
        raise DataError.at(folder, f"has no {file} that can be loaded: {said(error)}") from None
    if not tokenizer.is_fast:
        message = "has a slow tokenizer, which does not say where its tokens stand; save it with tokenizer.json"
        raise DataError.at(folder, message)
    if tokenizer.eos_token_id is None:
        message = "has a tokenizer without an end-of-sequence token; set eos_token in tokenizer_config.json"
        raise DataError.at(folder, message)
    written = _written(Path(folder) / "tokenizer.json", tokenizer.backend_tokenizer)
    return Tokenizer(tokenizer, vocab_size=_vocab_size(Path(folder) / "config.json"), written=written)


def _written(file: Path, opened: Any) -> Any:
    """What the file alone says, where transformers opened it with a class's steps; else None."""
    from tokenizers import Tokenizer as Backend

    parts = read_json(file) or {}
    steps = {name: getattr(opened, name) for name in ("normalizer", "pre_tokenizer") if name in parts}
    if all(_text(parts[name]) == _text(step and json.loads(step.__getstate__())) for name, step in steps.items()):
        return None
    (written := Backend.from_file(str(file))).no_truncation()
    return written


def _text(step: Any) -> str:
    """A step of a tokenizer.json, without what changes no token."""
    return re.sub('"trim_offsets": (true|false)', "", json.dumps(step, sort_keys=True))


def _vocab_size(config: Path) -> int | None:
    """From the model's config.json; models with several parts keep it with the text part."""
    data = read_json(config) or {}
    sizes = (part.get("vocab_size") for part in (data, data.get("text_config")) if isinstance(part, dict))
    return next((size for size in sizes if isinstance(size, int)), None)
