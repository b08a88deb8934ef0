"""A plain PyTorch loop over the same rows, with nothing of ours but the reader of samples."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, get_cosine_schedule_with_warmup

from shardwise.spec.job.keys import Job
from shardwise.train.build import Build
from tests.dist.cells import execution, prepare_cell, run_built


def reference_losses(job: Job, root: Path, *, loader: Any = AutoModelForCausalLM, steps: int = 20) -> list[float]:
    """Loss per trained token of each step, one row after the other, AdamW and clipping from torch.
    `loader`: the class of transformers that loads the model; `steps`: of the schedule."""
    return run_built(_losses, prepare_cell(job, root), execution(), loader, steps)[0]


def _losses(built: Build, loader: Any, steps: int) -> list[float]:
    job = built.job
    model = loader.from_pretrained(job.model, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.train.learning_rate, weight_decay=0.0)
    schedule = get_cosine_schedule_with_warmup(optimizer, job.train.warmup_steps, steps)
    losses: list[float] = []
    for batch in built.batches.from_(0):
        samples = [built.data.sample(sample) for sample in batch.sample_ids]
        trained = sum(int((labels != -100).sum()) for _, _, labels in samples)
        total = 0.0
        for ids, _, labels in samples:
            logits = model(input_ids=torch.tensor(ids.tolist()).unsqueeze(0)).logits[0]
            loss = F.cross_entropy(logits, torch.tensor(labels.tolist()), reduction="sum", ignore_index=-100) / trained
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses
