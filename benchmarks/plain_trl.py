"""The opponent with preferences: TRL's DPOTrainer with its defaults, on the pairs and the model of the benchmark.

In full training the reference's log-probabilities are computed before the first step, as Shardwise does; with an
adapter the reference is the model without it. Writes one JSON line per optimizer step: `step`, `tokens` (real ones of
all processes), `loss`. Run by run.py.
"""

from __future__ import annotations

from typing import Any

import torch
from datasets import load_dataset
from plain_accelerate import arguments
from plain_trainer import Notes
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer


def main() -> None:
    """Trains, writes a line per step, and saves the model."""
    args = arguments(__doc__)
    # Rows made in memory have a cache in each process, of which the others find nothing.
    cache = str(args.metrics.parent / "datasets")
    rows = load_dataset("json", data_files=str(args.rows), split="train", cache_dir=cache)
    adapter: dict[str, Any] = {}
    if args.method == "lora":
        from peft import LoraConfig

        adapter["peft_config"] = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = DPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32),
        args=DPOConfig(
            output_dir=str(args.metrics.parent / "trl"),
            max_steps=args.steps,
            per_device_train_batch_size=args.micro_batch,
            gradient_accumulation_steps=args.accumulation,
            learning_rate=args.learning_rate,
            max_length=args.max_length,
            precompute_ref_log_probs=args.method == "full",
            gradient_checkpointing=False,
            bf16=False,
            include_num_input_tokens_seen="non_padding",
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=args.cpu,
            ddp_find_unused_parameters=False,
        ),
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(args.model),
        callbacks=[Notes(args.metrics)],
        **adapter,
    )
    trainer.train()
    trainer.save_model(str(args.metrics.parent / "final"))


if __name__ == "__main__":
    main()
