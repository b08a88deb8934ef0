"""Which token ends what is trained, and why none does."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwise.data.prepare.build import Shard, each
from shardwise.data.workers.pool import Pool

Ids = npt.NDArray[np.int32]

#: Tokens of white space that are trained behind a mark, at most.
MAX_BEHIND = 3
#: Tokens that show how an answer without a mark ends.
_SAMPLE = 24
#: A mark that the tokenizer writes in letters.
_SPELT = re.compile(r"(<[|｜][^<>\s]{1,40}[|｜]>|<\w*(?:_of_\w+|eos)>|</s>)\s*$")


class Ends:
    """How trained spans end: the added token, with what is trained behind it; how many lack it."""

    def __init__(self, added_ids: Sequence[int]) -> None:
        self._added = np.array(added_ids, np.int32)
        self._tails: Counter[tuple[int, ...]] = Counter()
        self._unmarked = 0
        self._sample: list[list[int]] = []

    def add(self, rows: npt.NDArray[np.void], tokens: Ids, trained: npt.NDArray[np.bool_]) -> None:
        """Counts the spans of documents. A span that truncation cut has no end."""
        stops = np.cumsum(rows["length"], dtype=np.int64)
        continues = np.append(trained[1:], False)
        continues[stops - 1] = False
        begins = np.append(False, trained[:-1])
        begins[(stops - rows["length"])] = False
        first, ends = np.flatnonzero(trained & ~begins), np.flatnonzero(trained & ~continues)
        row = np.searchsorted(stops, ends, side="right")
        whole = ~rows["was_truncated"][row] | (ends + 1 < stops[row])
        first, ends, row = first[whole], ends[whole], row[whole]
        for behind in range(MAX_BEHIND + 1):
            marked = (ends - behind >= first) & np.isin(tokens[np.maximum(ends - behind, 0)], self._added)
            tails = tokens[ends[marked][:, None] + np.arange(-behind, 1)]
            for tail, count in zip(*np.unique(tails, axis=0, return_counts=True), strict=True):
                self._tails[tuple(tail.tolist())] += int(count)
            first, ends, row = first[~marked], ends[~marked], row[~marked]
        self._unmarked += len(ends)
        if len(ends) and not self._sample:
            end = ends[0] + 1
            shown, after = tokens[max(first[0], end - _SAMPLE) : end], tokens[end : stops[row[0]]]
            self._sample = [shown.tolist(), after[:1].tolist()]

    def described(self, pool: Pool) -> dict[str, Any]:
        """For data.json: the tokens by their number, and the spans without one."""
        tails = list(self._tails)
        pieces = [*([tail[0]] for tail in tails), *(list(tail[1:]) for tail in tails), *self._sample]
        texts: list[str] = pool.ask({"do": "decode", "pieces": pieces}, name="the ends of answers")["texts"]
        counts: Counter[tuple[int, str]] = Counter()
        for tail, text, behind in zip(tails, texts, texts[len(tails) :], strict=False):
            if not behind.strip():
                counts[tail[0], text] += self._tails[tail]
        tokens = [{"id": ident, "text": text, "count": count} for (ident, text), count in counts.most_common()]
        unmarked = self._unmarked + self._tails.total() - counts.total()
        shown, after = texts[-2:] if self._sample else ("", "")
        blocks = pool.facts["generation_blocks"]
        cause = self._cause(shown, after, blocks=blocks) if unmarked and not tokens else None
        return {"tokens": tokens, "unmarked": unmarked, "cause": cause}

    def _cause(self, shown: str, after: str, *, blocks: bool) -> str:
        why = "the chat template writes none behind an answer; name one that does in data.chat_template"
        if spelt := _SPELT.search(shown):
            why = (
                f"the model's tokenizer has no token {spelt[1]} and writes it in letters; name a template that ends "
                "answers in a token of its own in data.chat_template"
            )
        elif blocks and self._sample and self._sample[1] and self._sample[1][0] in self._added:
            why = f"{after.strip()} stands behind it, outside the {{% generation %}} block; move it into the block"
        return f"no trained answer ends in a special token, so the model will not learn to stop: {why}"


def count_ends(shards: Sequence[Shard], chosen: npt.NDArray[np.bool_], *, into: Ends) -> None:
    """Counts the spans of all documents that are not set aside (`chosen`), a shard at a time."""
    for shard, rows, evaluated in each(shards, chosen):
        kept = ~evaluated
        if kept.any():
            by_token = np.repeat(kept, rows["length"])
            into.add(rows[kept], shard.tokens()[by_token], shard.trained()[by_token])
