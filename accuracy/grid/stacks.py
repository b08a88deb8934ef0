"""Steps of other trainers on toys: the most that is allocated at one instant, beside the forecast
of `plan --for`.

    python -m accuracy.grid.stacks TARGET [--out accuracy/grid/stacks.csv]

run where the target's package is installed, on a CPU process, in bfloat16 under autocast where it
does so. Each toy has wide logits or long rows, so that one term after the other is the peak. The
rows of the target in the file are made anew, the others stay.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM

from shardwise.catalog.calibration import Stack
from shardwise.spec.plan.forecast import Plan

#: Vocabulary, width, layers, rows of a forward, tokens of a row.
TOYS = ((4096, 64, 2, 4, 128), (512, 128, 4, 2, 256), (16384, 64, 2, 2, 128), (256, 256, 4, 1, 64))
FIELDS = ("target", "version", "layout", "vocab", "width", "layers", "rows", "length", "measured", "forecast", "ours")
Toy = tuple[int, int, int, int, int]


def model_of(toy: Toy) -> LlamaForCausalLM:
    """A random model of a toy, in float32."""
    vocab, width, layers, _, length = toy
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=length,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config)


def batch_of(toy: Toy) -> dict[str, torch.Tensor]:
    """Rows as long as they may be, all of which is trained on."""
    ids = torch.randint(0, toy[0], (toy[3], toy[4]), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}


def peak_of(step: Callable[[], Any], held: Callable[[], int]) -> int:
    """Of the second step: what is held before it, and the most that is allocated on top at one
    instant."""
    step()
    before = held()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    results: Any = seen.profiler.kineto_results  # type: ignore[union-attr]
    now = most = 0
    for event in sorted((e for e in results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return before + most


def bytes_of(tensors: Iterator[Any]) -> int:
    """Of tensors, each counted once."""
    seen = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if isinstance(t, torch.Tensor)
    }
    return sum(seen.values())


def held_by(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Weights and states."""
    return bytes_of(iter(model.parameters())) + bytes_of(
        value for state in optimizer.state.values() for value in state.values()
    )


def plain(toy: Toy) -> int:
    """A plain loop with the model's own loss and torch's AdamW, as a script under Accelerate has
    it."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = model_of(toy)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    batch = batch_of(toy)

    def step() -> None:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()

    return peak_of(step, lambda: held_by(model, optimizer.optimizer))


def tokenizer(vocab: int) -> Any:
    """Of as many words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {f"w{index}": index for index in range(vocab)}
    made = Tokenizer(WordLevel(words, unk_token="w0"))  # noqa: S106
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="w1", pad_token="w2")  # noqa: S106


def of_trainer(toy: Toy, *, trl: bool = False) -> int:
    """transformers' Trainer, on which Axolotl and LLaMA-Factory stand, or TRL's: its training_step
    and optimizer."""
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        same: dict[str, Any] = {"output_dir": folder, "use_cpu": True, "bf16": True, "report_to": [], "max_steps": 2}
        same |= {"per_device_train_batch_size": toy[3], "gradient_checkpointing": False}
        model, batch = model_of(toy), batch_of(toy)
        if trl:
            from datasets import Dataset
            from trl import SFTConfig, SFTTrainer

            rows = Dataset.from_list([{"input_ids": batch["input_ids"][0].tolist()}] * 8)
            trainer: Any = SFTTrainer(
                model=model,
                args=SFTConfig(**same, max_length=toy[4]),
                train_dataset=rows,
                processing_class=tokenizer(toy[0]),
            )
        else:
            trainer = Trainer(model=model, args=TrainingArguments(**same))
        trainer.create_optimizer()
        prepared: Any = trainer.accelerator.prepare(trainer.model, trainer.optimizer)
        model, optimizer = prepared
        model.train()

        def step() -> None:
            trainer.training_step(model, dict(batch), num_items_in_batch=torch.tensor(batch["labels"].numel()))
            optimizer.step()
            optimizer.zero_grad()

        return peak_of(step, lambda: held_by(model, optimizer.optimizer))


STEPS: dict[str, Callable[[Toy], int]] = {
    "accelerate": plain,
    "axolotl": of_trainer,
    "llama-factory": of_trainer,
    "trl": lambda toy: of_trainer(toy, trl=True),
}
#: What DeepSpeed's engine is measured in, by target: all, or what is left to it.
LAYOUTS = {"deepspeed": ("single", "ddp", "zero1", "zero2", "fsdp"), "llama-factory": ("zero1", "zero2", "fsdp")}


def planned(toy: Toy, target: str, layout: str) -> Plan:
    """The plan of the toy that the target's step is of."""
    from shardwise.catalog.calibration import known_stacks
    from shardwise.catalog.config import shape_from_data
    from shardwise.catalog.gpus import parse_hardware
    from shardwise.plan import make_plan
    from shardwise.spec.job.file import job_from_data

    ranks = 1 if layout == "single" else 2
    batch = {"global_batch_size": toy[3] * ranks, "micro_batch_size": toy[3]}
    train = {**batch, "gradient_checkpointing": "none", "max_steps": 2, "precision": "mixed", "optimizer": "adamw"}
    train["loss"] = "full" if known_stacks()[target].logit_bytes else "auto"
    data = {"model": "toy", "data": {"path": "rows.jsonl", "max_length": toy[4]}, "train": train, "layout": layout}
    shape = shape_from_data(model_of(toy).config.to_dict(), file="toy")
    return make_plan(job_from_data(data), model=shape, cluster=parse_hardware(f"cpu:{ranks}"))


def forecast_of(toy: Toy, stack: Stack, layout: str) -> tuple[int, int]:
    """Bytes of the stack and of this trainer, without what lies outside the allocator."""
    from shardwise.plan import on_stack

    made = planned(toy, stack.name, layout)
    assert made.best is not None  # noqa: S101
    theirs = on_stack(made, stack)
    assert theirs is not None  # noqa: S101
    context = made.best.worst_rank.parts["context"]
    return theirs.peak_bytes - context, made.best.memory.peak_bytes - context


def main() -> None:
    """Measures, and writes the rows."""
    from shardwise.catalog.calibration import known_stacks

    parser = argparse.ArgumentParser(prog="python -m accuracy.grid.stacks")
    parser.add_argument("target", choices=[*STEPS, "deepspeed"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "stacks.csv")
    asked = parser.parse_args()
    made = list(csv.DictReader(asked.out.open())) if asked.out.is_file() else []
    made = [row for row in made if row["target"] != asked.target]
    stack, layouts = known_stacks()[asked.target], LAYOUTS.get(asked.target, ())
    peaks = {("single", toy): STEPS[asked.target](toy) for toy in TOYS if asked.target in STEPS}
    if layouts:
        from accuracy.grid.zero import BUCKET, of_deepspeed

        stack = replace(stack, bucket=BUCKET)
        peaks |= of_deepspeed(asked.target, TOYS, layouts)
    for layout, toy in sorted(peaks, key=lambda one: TOYS.index(one[1])):
        measured, (forecast, ours) = peaks[layout, toy], forecast_of(toy, stack, layout)
        print(
            f"{asked.target} {layout} {toy}: measured {measured:,}, forecast {forecast:,} , ours {ours:,}", flush=True
        )
        made.append(dict(zip(FIELDS, (stack.name, stack.version, layout, *toy, measured, forecast, ours), strict=True)))
    with asked.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(made)


if __name__ == "__main__":
    main()
