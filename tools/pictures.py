"""Renews the pictures of README and documentation: a plan as the terminal and the page show it, and a run's report.

python tools/pictures.py                  # exits 1 where plan.svg, answer.svg or filling.svg of docs/pictures is old
python tools/pictures.py --write          # renews them
python tools/pictures.py runs/demo-lora   # renews docs/pictures/report.png, by chromium
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from shardwise import api
from shardwise.api.plans.shapes import find_model
from shardwise.cli.plan_table import print_plan
from shardwise.plan.memory.forecast import holdings_of, moments
from shardwise.plan.work import context_bytes, take_inventory, work_of
from shardwise.report.pages.charts import Bar, MemoryBar, memory_chart
from shardwise.report.pages.plan_page import MOST, memory_of
from shardwise.report.pages.render import static_text
from shardwise.spec.cluster import Cluster
from shardwise.spec.plan.forecast import PARTS, verdict
from shardwise.spec.request import Override, read_request

PICTURES = Path(__file__).parent.parent / "docs/pictures"
COMMAND = 'shardwise plan --model llama-3.1-8b --method lora --hardware "4x RTX-6000-Ada"'
SETTINGS = ("model=llama-3.1-8b", "method=lora", "hardware=4x RTX-6000-Ada")
FIRST_LINES = 30
#: Of the picture of a GPU that fills up: what is trained, and instants at which nothing new is seen.
FILLING = (
    *("model=llama-3.1-8b", "method=full", "hardware=4x RTX-6000-Ada", "layout=fsdp", "data.max_length=4096"),
    *("train.global_batch_size=8", "train.micro_batch_size=1", "train.gradient_checkpointing=full"),
)
FILLS = "One of 4 RTX 6000 Ada in a step of Llama 3.1 8B, fsdp"
PASSED_OVER = ("sum of gradients", "exchange of new", "reduction of", "end of forward", "backward of layer 30")
#: Of the picture of an answer, which a phone shows as it is.
WIDTH, LEFT, RIGHT, LETTERS = 400, 96, 58, 50


def plan_picture() -> str:
    """SVG of the plan's first lines in a terminal; nothing in it is loaded from outside."""
    text = io.StringIO()
    plain = Console(file=text, width=112, highlight=False, markup=False, emoji=False, force_terminal=True)
    print_plan(api.plan(overrides=list(SETTINGS)), plain)
    lines = text.getvalue().splitlines()
    shown = lines[:FIRST_LINES] + (["..."] if len(lines) > FIRST_LINES else [])
    recorded = Console(record=True, width=112, file=io.StringIO(), highlight=False, markup=False, force_terminal=True)
    recorded.print(f"$ {COMMAND}", style="bold")
    recorded.print(Text.from_ansi("\n".join(shown)), no_wrap=True)
    drawn = recorded.export_svg(title="shardwise plan", theme=MONOKAI, unique_id="plan")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")


def answer_picture() -> str:
    """SVG of the verdict and the memory of the first candidates, as the page has them, light or dark."""
    made = api.plan(overrides=[*SETTINGS, "data.num_rows=10000"])
    drawn = memory_of(made, list(made.candidates)[:MOST])
    if drawn is None or drawn.mark is None:
        raise ValueError("there is nothing to draw")
    parts: list[str] = []
    y = 10
    for line in textwrap.wrap(f"{verdict(made)[:1].upper()}{verdict(made)[1:]}.", LETTERS):
        y += 18
        parts.append(f'<text x="12" y="{y}" class="strong">{escape(line)}</text>')
    if made.run is not None:
        for line in textwrap.wrap(f"{made.run.sentence}.", LETTERS + 6):
            y += 17
            parts.append(f'<text x="12" y="{y}" class="quiet">{escape(line)}</text>')
    y += 14
    length = WIDTH - LEFT - RIGHT
    for bar in drawn.bars:
        parts += _bar(bar, left=LEFT, y=y, length=length)
        y += 21
    mark = LEFT + drawn.mark * length / 100
    bottom, top = y - 5, y - 21 * len(drawn.bars) - 2
    parts.append(f'<line x1="{mark:.1f}" x2="{mark:.1f}" y1="{top}" y2="{bottom}" class="capacity"/>')
    y = _legend(parts, drawn.legend, y=y + 12)
    return _drawn(parts, height=y + 10, title=verdict(made))


def filling_picture() -> str:
    """SVG of what the fullest GPU holds at each instant of a step, against its capacity."""
    request = read_request(None, overrides=[Override.of(one) for one in FILLING])
    made = api.plan(overrides=list(FILLING))
    if made.best is None:
        raise ValueError("there is nothing to draw")
    model, cluster = find_model(request.job.model), Cluster.from_json(made.hardware)
    inventory = take_inventory(request.job, model)
    work = work_of(request.job, model=model, cluster=cluster, execution=made.best.execution, inventory=inventory)
    context, capacity = context_bytes(cluster, work.execution.layout), made.best.memory.capacity_bytes
    alive = dict(moments(work, holdings_of(work)[0]))
    stacks = [
        MemoryBar(label=name, parts={part: round(held.get(part, 0)) for part in PARTS[:-1]} | {"context": context})
        for name, held in alive.items()
        if not name.startswith(PASSED_OVER)
    ]
    drawn = memory_chart(stacks, title="", capacity=capacity)
    parts = [f'<text x="12" y="24" class="strong">{escape(FILLS)}</text>']
    y, length, left = 40, WIDTH - 150 - RIGHT, 150
    for bar in drawn.bars:
        parts += _bar(bar, left=left, y=y, length=length)
        y += 21
    mark = left + (drawn.mark or 100) * length / 100
    parts.append(f'<line x1="{mark:.1f}" x2="{mark:.1f}" y1="38" y2="{y - 5}" class="capacity"/>')
    y = _legend(parts, drawn.legend, y=y + 12)
    return _drawn(parts, height=y + 10, title=FILLS)


def _bar(bar: Bar, *, left: int, y: int, length: int) -> list[str]:
    return [
        f'<text x="{left - 8}" y="{y + 11}" class="end">{escape(bar.label)}</text>',
        f'<rect x="{left}" y="{y}" width="{length}" height="14" fill="var(--idle)"/>',
        *(
            f'<rect x="{left + one.start * length / 100:.1f}" y="{y}" width="{one.width * length / 100:.1f}" '
            f'height="14" fill="var(--{one.look.split()[-1]})"/>'
            for one in bar.segments
        ),
        f'<text x="{WIDTH - RIGHT + 6}" y="{y + 11}">{escape(bar.total)}</text>',
    ]


def _legend(parts: list[str], legend: Sequence[tuple[str, str]], *, y: int) -> int:
    """Adds the colours; returns where they end."""
    x = 12
    for look, words in legend:
        width = 24 + 6.6 * len(words)
        if x + width > WIDTH:
            x, y = 12, y + 17
        colour = "bad" if look == "capacity" else look.split()[-1]
        parts.append(f'<rect x="{x:.0f}" y="{y - 9}" width="10" height="10" rx="2" fill="var(--{colour})"/>')
        parts.append(f'<text x="{x + 14:.0f}" y="{y}" class="quiet">{escape(words)}</text>')
        x += width
    return y


def _drawn(parts: list[str], *, height: int, title: str) -> str:
    """SVG with the colours of the pages."""
    light, dark = re.findall(r":root \{(.*?)\}", static_text("page.css"), flags=re.DOTALL)[:2]
    style = (
        f":root {{{light}}} @media (prefers-color-scheme: dark) {{ :root {{{dark}}} }} "
        "text { font: 11.5px system-ui, sans-serif; fill: var(--ink); } .strong { font-size: 14px; font-weight: 650; } "
        ".quiet { fill: var(--quiet); } .end { text-anchor: end; } "
        ".capacity { stroke: var(--bad); stroke-width: 2; stroke-dasharray: 3 3; }"
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{' '.join(style.split())}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="var(--panel)" stroke="var(--edge)"/>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def report_picture(run: Path) -> None:
    """PNG of the report page of a run."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or sys.exit("there is no chromium on PATH")
    target = PICTURES / "report.png"
    size = "--window-size=1180,1180"
    page = (run / "report.html").resolve().as_uri()
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--virtual-time-budget=4000",
        size,
        f"--screenshot={target}",
    ]
    subprocess.run([chromium, *options, page], check=True, capture_output=True, timeout=60)


def main() -> int:
    """Compares the pictures that need no run, or renews them."""
    given = sys.argv[1:]
    old: list[str] = []
    pictures = {"plan.svg": plan_picture, "answer.svg": answer_picture, "filling.svg": filling_picture}
    for name, picture in pictures.items():
        file, text = PICTURES / name, picture()
        if given == ["--write"]:
            file.write_text(text, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != text:
            old.append(name)
    if given and given != ["--write"]:
        report_picture(Path(given[0]))
        return 0
    if old:
        print(f"docs/pictures: {', '.join(old)} show what the program no longer says; python tools/pictures.py --write")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
