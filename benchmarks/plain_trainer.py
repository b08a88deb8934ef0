"""The other opponent: `transformers.Trainer` with its defaults, on the rows and the model of the benchmark.

Writes one JSON line per optimizer step: `step`, `tokens` (real ones of all processes), `loss`. Run by run.py.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from plain_accelerate import arguments, encode, load_model, pad
from transformers import (
    AutoTokenizer,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)


class Notes(TrainerCallback):
    """Writes a line after each step."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = 0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:  # noqa: ARG002 - called by position
        """What the Trainer has seen since the step before."""
        tokens, self._seen = int(state.num_input_tokens_seen) - self._seen, int(state.num_input_tokens_seen)
        if state.is_world_process_zero:
            loss = state.log_history[-1].get("loss") if state.log_history else None
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, "tokens": tokens, "loss": loss}) + "\n")


def main() -> None:
    """Trains, writes a line per step, and saves the model."""
    args = arguments(__doc__)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    lines = args.rows.read_text(encoding="utf-8").splitlines()
    rows = [encode(json.loads(line), tokenizer=tokenizer, max_length=args.max_length) for line in lines]
    trainer = Trainer(
        model=load_model(args),
        args=TrainingArguments(
            output_dir=str(args.metrics.parent / "trainer"),
            max_steps=args.steps,
            per_device_train_batch_size=args.micro_batch,
            gradient_accumulation_steps=args.accumulation,
            learning_rate=args.learning_rate,
            weight_decay=0.0,
            include_num_input_tokens_seen="non_padding",
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=args.cpu,
            ddp_find_unused_parameters=False,
        ),
        train_dataset=rows,  # pyright: ignore[reportArgumentType] - a list is a map-style data set
        data_collator=partial(pad, padding_id=tokenizer.pad_token_id),
        callbacks=[Notes(args.metrics)],
    )
    trainer.train()
    trainer.save_model(str(args.metrics.parent / "final"))


if __name__ == "__main__":
    main()
