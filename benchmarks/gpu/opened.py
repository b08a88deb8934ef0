"""Opens a saved model as its users do, and evaluates it: `python opened.py FINAL ROWS TOKENS DEVICE [BASE]`.

Prints the mean loss over all tokens of rows cut to so many, in float32: what the run's own evaluation at its end is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


@torch.no_grad()
def main() -> None:
    """Evaluates row by row; all rows have the same number of tokens."""
    final, rows, tokens, device, *base = sys.argv[1:]
    model = AutoModelForCausalLM.from_pretrained(*base or [final], dtype=torch.float32)
    if base:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, final)
    model = model.to(device).eval()
    tokenizer = AutoTokenizer.from_pretrained(final)
    losses = []
    for line in Path(rows).read_text(encoding="utf-8").splitlines():
        ids = torch.tensor([tokenizer(json.loads(line)["text"])["input_ids"][: int(tokens)]], device=device)
        losses.append(model(input_ids=ids, labels=ids).loss.item())
    print(json.dumps({"loss": sum(losses) / len(losses)}))


if __name__ == "__main__":
    main()
