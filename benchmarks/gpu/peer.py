"""The same training by other means, on the same model and rows: a plain loop, transformers' Trainer, Unsloth.

    python peer.py loop MODEL ROWS FOLDER --tokens 2048 --micro 2 --accumulation 4 --method lora --compile --liger

bfloat16 compute (autocast over float32 weights in full fine-tuning; bfloat16 weights under LoRA), AdamW, no dropout.
Writes FOLDER/run/metrics.jsonl, a line for each step: `seconds` since the step before, `loss`, `peak_bytes`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

LORA = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.0}
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Notes:
    """Writes a line when a step has ended on the device."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._last = path.open("w", encoding="utf-8"), time.monotonic()

    def step(self, loss: float | None = None) -> None:
        """The step since the last call."""
        import torch

        peak = 0
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        now = time.monotonic()
        line = {"seconds": now - self._last, "loss": loss, "peak_bytes": peak}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self._last = now


def load(args: argparse.Namespace) -> Any:
    """The model, with adapters where asked for."""
    import torch
    from transformers import AutoModelForCausalLM

    lora = args.method == "lora"
    kind = torch.bfloat16 if lora and args.device == "cuda" else torch.float32
    if args.kind == "unsloth":
        from unsloth import FastLanguageModel

        model, _ = FastLanguageModel.from_pretrained(
            str(args.model), max_seq_length=args.tokens, dtype=kind, load_in_4bit=False, full_finetuning=not lora
        )
        adapted = {"target_modules": PROJECTIONS, "use_gradient_checkpointing": False, **LORA}
        return FastLanguageModel.get_peft_model(model, **adapted) if lora else model
    maker = AutoModelForCausalLM
    if args.liger:
        from liger_kernel.transformers import AutoLigerKernelForCausalLM as maker  # noqa: N813
    model = maker.from_pretrained(args.model, dtype=kind).to(args.device)
    model.config.use_cache = False
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM", **LORA))
    return model.train()


def loop(args: argparse.Namespace, rows: list[list[int]], notes: Notes) -> None:
    """A step is: forward and backward of each micro-batch, clip, AdamW."""
    import torch

    model = load(args)
    if args.compile:
        for block in (model.get_base_model() if args.method == "lora" else model).model.layers:
            block.compile()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, weight_decay=0.0, fused=args.device == "cuda")
    micros = [rows[i : i + args.micro] for i in range(0, len(rows), args.micro)]
    for step in range(args.steps):
        total = torch.zeros((), device=args.device)
        for micro in micros[step * args.accumulation : (step + 1) * args.accumulation]:
            ids = torch.tensor(micro).to(args.device)
            with torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda"):
                loss = model(input_ids=ids, labels=ids).loss / args.accumulation
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        notes.step(total.item())


def trainer(args: argparse.Namespace, rows: list[list[int]], notes: Notes) -> None:
    """transformers' Trainer with its defaults, which also trains what Unsloth has patched."""
    from transformers import Trainer, TrainerCallback, TrainingArguments, default_data_collator

    class Told(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            notes.step()

    settings = TrainingArguments(
        output_dir=str(args.folder / "trainer"),
        per_device_train_batch_size=args.micro,
        gradient_accumulation_steps=args.accumulation,
        max_steps=args.steps,
        learning_rate=1e-5,
        bf16=args.device == "cuda",
        use_cpu=args.device == "cpu",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    data = [{"input_ids": row, "labels": row, "attention_mask": [1] * len(row)} for row in rows]
    one = Trainer(load(args), settings, default_data_collator, data, callbacks=[Told()])  # type: ignore[arg-type]
    one.train()
    one.save_model(str(args.folder / "final"))


def main() -> None:
    """Reads the command line and the rows, and trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("loop", "trainer", "unsloth"))
    for name in ("model", "rows", "folder"):
        parser.add_argument(name, type=Path)
    for name in ("tokens", "micro", "accumulation", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--method", choices=("full", "lora"), required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--liger", action="store_true")
    args = parser.parse_args()
    if args.kind == "unsloth":
        import unsloth  # noqa: F401 - before transformers, as it asks
    from transformers import AutoTokenizer

    notes, tokenizer = Notes(args.folder / "run/metrics.jsonl"), AutoTokenizer.from_pretrained(args.model)
    texts = [json.loads(line)["text"] for line in args.rows.read_text(encoding="utf-8").splitlines()]
    count = args.micro * args.accumulation * args.steps
    rows = [tokenizer(text)["input_ids"][: args.tokens] for text in texts[:count]]
    (loop if args.kind == "loop" else trainer)(args, (rows * count)[:count], notes)


if __name__ == "__main__":
    main()
