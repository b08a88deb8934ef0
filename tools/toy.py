"""Keeps docs/learn/parallelism.md equal to the program: who holds what and who works when, on a model of three layers.

The toy is that of `shardwise serve` (`api/toy.py`).

python tools/toy.py            # exits 1 where the page or a picture is out of date
python tools/toy.py --write    # renews them
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

from shardwise.api.learn.toy import GPUS, HOLDINGS, LAYERS, ROWS, STRATEGIES, Held, pieces, timeline_of
from shardwise.report.pages.render import static_text
from shardwise.spec.layout.axes import Layout
from shardwise.spec.plan.timeline import KIND_WORDS, Kind, Lane, Timeline

_CONTEXT = """\
## Context parallel (`cp`)

For rows that are too long for one GPU. A row is cut into twice as many parts as there are GPUs, and GPU `i` holds the
parts `i` from the front and `i` from the back, so that each compares as many tokens. All that looks at one token at a
time (norms, matrices, loss) runs on a GPU's own parts. Attention gathers the keys and values of the whole row, and
adds up their gradients backwards. Labels are shifted before the cut and positions are those of the whole row;
documents of packed rows stay apart.

`layout: {dp_shard: 4, cp: 2}` shares each row between two GPUs, and weights are then sharded over all eight; with `cp`
alone they are sharded over the GPUs that share a row, unless `shard_over_cp: false` leaves them whole there. GPUs that
share a row count once towards the global batch. Activations shrink with `cp`, but for the gathered keys and values.
It takes `sdpa` and blocks that are not compiled.

"""

PAGE = Path(__file__).parent.parent / "docs/learn/parallelism.md"
PICTURES = PAGE.parent / "toy"

STYLE = static_text("page.css")


def colour_of(look: str) -> str:
    """The colour that the program's pages give to a class of their style sheet, in the light."""
    name = re.search(rf"\.{re.escape(look)}[ ,][^{{}}]*\{{ --colour: var\((--\w+)\)", STYLE)
    found = name and re.search(rf"{name[1]}: (#[0-9a-f]{{6}});", STYLE)
    return found[1] if found else sys.exit(f"page.css has no colour for .{look}")


COLOURS: dict[Kind, str] = {kind: colour_of(f"span.{kind}") for kind in KIND_WORDS}
INK, FAINT, HELD = "#1a2029", "#eef0f3", tuple(colour_of(f"part.{what}") for what in HOLDINGS)
FONT = 'font-family="system-ui, sans-serif" font-size="15"'


def holdings_picture(layout: Layout) -> str:
    """SVG: for each GPU the rows of each layer's weight, gradient and optimizer states that it holds."""
    cell, left, top, group = 16, 66, 42, 188
    parts = [_text(left + index * group, 16, name) for index, name in enumerate(HOLDINGS)]
    for index, what in enumerate(HOLDINGS):
        for layer, letter in enumerate(LAYERS):
            parts.append(_text(left + index * group + layer * 58 + 18, 34, letter))
            for rank in range(GPUS):
                held = pieces(layout, rank, what=what)
                for row in range(ROWS):
                    colour = HELD[index] if (layer, row) in held else FAINT
                    x, y = left + index * group + layer * 58 + row * (cell + 1), top + rank * 26
                    parts.append(f'<rect x="{x}" y="{y}" width="{cell}" height="{cell}" rx="2" fill="{colour}"/>')
    parts += [_text(4, top + rank * 26 + 13, f"GPU {rank}") for rank in range(GPUS)]
    return _svg(width=left + 3 * group, height=top + GPUS * 26 + 4, parts=parts)


def timeline_picture(timeline: Timeline) -> str:
    """SVG: a row for each GPU with what it computes, and below it, thin, what travels meanwhile."""
    left, width, y = 66, 556, 8
    parts: list[str] = []
    for rank in range(GPUS):
        lane = next(lane for lane in timeline.lanes if rank in lane.ranks)
        parts.append(_text(4, y + 15, f"GPU {rank}"))
        parts.append(f'<rect x="{left}" y="{y}" width="{width}" height="20" fill="{FAINT}"/>')
        for stream, height, offset in (("compute", 20, 0), ("links", 7, 22)):
            for kind, start, end in _merged(timeline, lane, stream, width=width):
                x = left + start
                parts.append(
                    f'<rect x="{x}" y="{y + offset}" width="{end - start}" height="{height}" fill="{COLOURS[kind]}"/>'
                )
        y += 38
    x, y = left, y + 12
    for kind in (kind for kind in KIND_WORDS if any(span.kind == kind for span in timeline.spans)):
        words = KIND_WORDS[kind].removesuffix(" for messages or for the host to launch work")
        length = 26 + round(6.6 * len(words))
        if x + length > left + width:
            x, y = left, y + 20
        parts.append(f'<rect x="{x}" y="{y - 10}" width="11" height="11" rx="2" fill="{COLOURS[kind]}"/>')
        parts.append(_text(x + 16, y, words).replace('font-size="15"', 'font-size="13"'))
        x += length
    y += 8
    return _svg(width=left + width + 8, height=y, parts=[*parts])


def _merged(timeline: Timeline, lane: Lane, stream: str, *, width: int) -> Iterator[tuple[Kind, int, int]]:
    """Spans in whole units of the picture; neighbours of one kind are one."""
    current: list[object] = []
    for span in timeline.of(lane, stream):  # type: ignore[arg-type]
        start, end = (round(at / timeline.seconds * width) for at in (span.start, span.end))
        if current and current[0] == span.kind and start - current[2] <= 1:  # type: ignore[operator]
            current[2] = max(end, current[2])  # type: ignore[type-var]
            continue
        if current and current[2] > current[1]:  # type: ignore[operator]
            yield tuple(current)  # type: ignore[misc]
        current = [span.kind, start, end]
    if current and current[2] > current[1]:  # type: ignore[operator]
        yield tuple(current)  # type: ignore[misc]


def _text(x: int, y: int, words: str) -> str:
    return f'<text x="{x}" y="{y}" fill="{INK}" {FONT}>{escape(words)}</text>'


def _svg(*, width: int, height: int, parts: list[str]) -> str:
    frame = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    return "\n".join([frame, f'<rect width="{width}" height="{height}" fill="#ffffff"/>', *parts, "</svg>", ""])


def words_of(layout: Layout, rank: int, what: Held) -> str:
    """What a rank holds, in letters: `a b c` are whole weights, `a0` is the first row of a."""
    held = pieces(layout, rank, what=what)
    found: list[str] = []
    for layer, letter in enumerate(LAYERS):
        rows = [row for row in range(ROWS) if (layer, row) in held]
        found += [letter] if len(rows) == ROWS else [f"{letter}{row}" for row in rows]
    return " ".join(found)


def _table(layout: Layout) -> Iterator[str]:
    yield "| GPU | weights | gradients | optimizer states | samples |"
    yield "|---|---|---|---|---|"
    for rank in range(GPUS):
        held = [words_of(layout, rank, what) for what in HOLDINGS]
        shares = layout.data_world_size
        seen = "all" if shares == 1 else f"share {layout.data_rank(rank) + 1} of {shares}"
        yield f"| {rank} | {' | '.join(held)} | {seen} |"


def files() -> dict[Path, str]:
    """Every file as it should be."""
    lines = [
        "# Parallelism on a toy model",
        "",
        "Written by `python tools/toy.py --write` from the layout code that planner and trainer share, and from the",
        "planner's timelines. The model has three layers, a, b and c, with one weight each. Each weight has three rows",
        "(a0, a1, a2). There are three GPUs. The tables and squares show what each GPU holds between two steps.",
        "",
        "The timelines show one step from left to right, for layers of the width of a real model (3,072) on three",
        "RTX 6000 Ada over PCI Express, 24 sequences of 2,048 tokens a step. Thick: what a GPU computes. Thin:",
        "what travels. Lengths are shares of the strategy's own step, not seconds. For your own job:",
        "`shardwise plan JOB --timeline`.",
        "",
        "Colours: "
        + ", ".join(f'<span style="color:{COLOURS[kind]}">&#9632;</span> {words}' for kind, words in KIND_WORDS.items())
        + ".",
        "",
    ]
    pictures: dict[Path, str] = {}
    for strategy in STRATEGIES:
        layout = Layout.from_strategy(strategy.name, world_size=GPUS)
        timeline = timeline_of(strategy.name)
        pictures[PICTURES / f"{strategy.name}-holds.svg"] = holdings_picture(layout)
        pictures[PICTURES / f"{strategy.name}-works.svg"] = timeline_picture(timeline)
        busy = " / ".join(
            f"{next(lane for lane in timeline.lanes if rank in lane.ranks).computing:.0%}" for rank in range(GPUS)
        )
        lines += [
            f"## {strategy.title}",
            "",
            strategy.text,
            "",
            *_table(layout),
            "",
            f"![What each GPU holds under {strategy.name}](toy/{strategy.name}-holds.svg)",
            "",
            f"![Who works when under {strategy.name}](toy/{strategy.name}-works.svg)",
            "",
            f"Share of the step in which GPU 0 / 1 / 2 computes: {busy}.",
            "",
        ]
    lines += [
        *_CONTEXT.splitlines(),
        "## Products",
        "",
        "Degrees multiply. `layout: {pp: 2, dp_shard: 4}` is a pipeline of two stages, each sharded over four GPUs:",
        "eight GPUs. `hsdp` shards inside a node and replicates across nodes. Tensor parallel goes inside a node,",
        "context parallel around it, pipelines across nodes.",
        "",
        "Next: [DDP or FSDP?](choose.md)",
        "",
    ]
    return {PAGE: "\n".join(lines), **pictures}


def main() -> None:
    """Compares, or writes."""
    for path, text in files().items():
        if "--write" in sys.argv[1:]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.name} is not what the program says; run: python tools/toy.py --write")


if __name__ == "__main__":
    main()
