"""Renews the pictures of README and documentation: a plan as the terminal shows it, and the report of a run.

python tools/pictures.py                  # docs/pictures/plan.svg
python tools/pictures.py runs/demo-lora   # and docs/pictures/report.png, by chromium
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from shardwise import api
from shardwise.cli.plan_table import print_plan

PICTURES = Path(__file__).parent.parent / "docs/pictures"
COMMAND = 'shardwise plan --model llama-3.1-8b --method lora --hardware "4x RTX-6000-Ada"'
SETTINGS = ("model=llama-3.1-8b", "method=lora", "hardware=4x RTX-6000-Ada")
FIRST_LINES = 30


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


def main() -> None:
    """Writes the pictures."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    (PICTURES / "plan.svg").write_text(plan_picture(), encoding="utf-8")
    if len(sys.argv) > 1:
        report_picture(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
