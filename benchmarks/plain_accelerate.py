"""The opponent: a plain Accelerate loop, as a competent user writes it, on the rows and the model of the benchmark.

Writes one JSON line per optimizer step: `step`, `tokens` (real ones of all processes), `loss`. Run by run.py.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    get_linear_schedule_with_warmup,
)

IGNORED = -100


def encode(row: dict[str, str], *, tokenizer: PreTrainedTokenizerBase, max_length: int) -> dict[str, list[int]]:
    """Token ids of a question with its answer, and labels that count the answer only."""
    question = row.get("question") or f"{row['instruction']}\n\n{row['input']}".strip()
    chat = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": row.get("answer") or row["output"]},
    ]
    prompt = tokenizer.apply_chat_template(chat[:1], add_generation_prompt=True, return_dict=False)
    whole = tokenizer.apply_chat_template(chat, return_dict=False)[:max_length]
    return {"input_ids": whole, "labels": ([IGNORED] * len(prompt) + whole[len(prompt) :])[:max_length]}


def pad(rows: list[dict[str, list[int]]], *, padding_id: int) -> dict[str, torch.Tensor]:
    """Rows as tensors, padded to the longest of them."""
    longest = max(len(row["input_ids"]) for row in rows)
    gaps = [longest - len(row["input_ids"]) for row in rows]
    ids = [row["input_ids"] + [padding_id] * gap for row, gap in zip(rows, gaps, strict=True)]
    labels = [row["labels"] + [IGNORED] * gap for row, gap in zip(rows, gaps, strict=True)]
    mask = [[1] * (longest - gap) + [0] * gap for gap in gaps]
    return {
        "input_ids": torch.tensor(ids),
        "labels": torch.tensor(labels),
        "attention_mask": torch.tensor(mask),
    }


def main() -> None:
    """Trains, and writes a line per step."""
    args = arguments(__doc__)
    set_seed(42)
    accelerator = Accelerator(cpu=args.cpu, gradient_accumulation_steps=args.accumulation)
    if accelerator.num_processes != args.processes:
        raise SystemExit(f"asked for {args.processes} processes, got {accelerator.num_processes}")
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    lines = args.rows.read_text(encoding="utf-8").splitlines()
    rows = [encode(json.loads(line), tokenizer=tokenizer, max_length=args.max_length) for line in lines]
    loader = DataLoader(
        rows,  # pyright: ignore[reportArgumentType] - a list is a map-style data set
        batch_size=args.micro_batch,
        shuffle=True,
        collate_fn=lambda batch: pad(batch, padding_id=tokenizer.pad_token_id),
    )
    model = load_model(args)
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=args.learning_rate, weight_decay=0.0
    )
    # The schedule is stepped by every process.
    schedule = get_linear_schedule_with_warmup(optimizer, 0, args.steps * accelerator.num_processes)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    model.train()
    step = tokens = 0
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        tokens += int(batch["attention_mask"].sum())
        if not accelerator.sync_gradients:
            continue
        step += 1
        total = accelerator.reduce(torch.tensor(tokens, device=accelerator.device)).item()
        if accelerator.is_main_process:
            _note(args.metrics, step=step, tokens=total, loss=loss.item())
        tokens = 0
        if step == args.steps:
            break
    accelerator.end_training()


def load_model(args: argparse.Namespace) -> Any:
    """The whole model, or with an adapter of rank 16 on all its linear layers."""
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    if args.method == "full":
        return model
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))


def _note(path: Path, **values: float) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


def arguments(description: str | None) -> argparse.Namespace:
    """What a plain script is told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--metrics", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--accumulation", type=int, required=True)
    parser.add_argument("--max-length", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--method", choices=("full", "lora"), default="full")
    parser.add_argument("--cpu", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
