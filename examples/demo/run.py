"""The demo, from nothing to a report: make a model, plan, train it, teach it a second task with LoRA, ask it.

Every step is a command that a user could type; it is printed before it runs. No download, no GPU needed; where there
are GPUs, all of them are used.

    python examples/demo/run.py
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

DEMO = Path("examples/demo")
MODEL = Path(".demo/model")
FULL, LORA = Path("runs/demo-full"), Path("runs/demo-lora")
QUESTIONS = ["What is the opposite of hot?", "Which day comes after Monday?", "What is 3 + 4?"]

LAST_WORDS = """
Done in {seconds:.0f} s. The loss fell from {full_loss} and, with LoRA, from {lora_loss}. Everything lies in
  {full}/   the model trained from nothing: report.html, metrics.jsonl, plan.json, final/
  {lora}/   the adapter that answers as YAML: the same files; final/ is what PEFT loads

Try next
  open {lora}/report.html in a browser
  {shardwise} chat {lora} --prompt "What colour is a banana?"
  {shardwise} merge {lora}
  {shardwise} plan --model llama-3.1-8b --method lora --hardware "4x RTX-6000-Ada"
  cp examples/demo/lora.yaml my-job.yaml, name your own model and rows in it, and {shardwise} train my-job.yaml"""


def main() -> None:
    """Runs the whole demo in a fresh state."""
    started = time.monotonic()
    for folder in (MODEL, FULL, LORA):
        shutil.rmtree(folder, ignore_errors=True)
    step("1. A small Llama with random weights, and a tokenizer trained on the demo's rows")
    rows = sorted(str(path) for path in (DEMO / "data").glob("*.jsonl"))
    python(DEMO / "make_model.py", MODEL, "--rows", *rows)
    python(DEMO / "ask.py", MODEL, *QUESTIONS)

    step("2. Does it fit, and how long will it take?")
    shardwise("plan", DEMO / "pretrain.yaml", *hardware())

    step("3. Task one: the whole model, from nothing")
    shardwise("train", DEMO / "pretrain.yaml", *hardware())
    python(DEMO / "ask.py", FULL / "final", *QUESTIONS)

    step("4. Task two: a LoRA adapter on that model learns to answer as YAML")
    shardwise("train", DEMO / "lora.yaml", *hardware())
    python(DEMO / "ask.py", LORA / "final", *QUESTIONS)

    print(
        LAST_WORDS.format(
            seconds=time.monotonic() - started,
            full=FULL,
            lora=LORA,
            full_loss=fall(FULL),
            lora_loss=fall(LORA),
            shardwise=program("shardwise"),
        )
    )


def fall(folder: Path) -> str:
    """The loss of a run's first and last step, in words."""
    losses = [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return f"{losses[0]:.2f} to {losses[-1]:.2f}"


def hardware() -> list[str]:
    """All GPUs of this machine, or two CPU processes where there are none."""
    return [] if shutil.which("nvidia-smi") else ["--set", "hardware=cpu:2"]


def step(title: str) -> None:
    """Says what comes now."""
    print(f"\n=== {title}", flush=True)


def python(script: Path, *arguments: str | Path) -> None:
    """Runs a script with this Python."""
    run(program("python"), script, *arguments)


def shardwise(verb: str, *arguments: str | Path) -> None:
    """Runs one verb."""
    run(program("shardwise"), verb, *arguments)


def program(name: str) -> str:
    """A program of the environment that runs this script, as short as it can be written from here."""
    path = Path(sys.executable).with_name(name)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def run(*command: str | Path) -> None:
    """Prints a command and runs it; the demo ends with its exit code if it fails."""
    words = [str(word) for word in command]
    print("$ " + shlex.join([Path(words[0]).name, *words[1:]]), flush=True)
    code = subprocess.run(words, check=False).returncode
    if code:
        sys.exit(code)


if __name__ == "__main__":
    main()
