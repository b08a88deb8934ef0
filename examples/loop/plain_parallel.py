"""A plain PyTorch loop over GPUs: torchrun --nproc-per-node 2 plain_parallel.py MODEL ROWS.jsonl OUT"""

import json
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling

import shardwise

name, rows, out = sys.argv[1:]
torch.manual_seed(0)
tokenizer = AutoTokenizer.from_pretrained(name)
texts = [json.loads(row)["text"] for row in Path(rows).read_text().splitlines()]
samples = [tokenizer(text, truncation=True, max_length=512) for text in texts]
collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
loader = DataLoader(samples, batch_size=8, shuffle=True, collate_fn=collator)
model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
model = shardwise.parallelize(model.train(), "fsdp")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for batch in loader:
    loss = model.step(batch)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    model.is_first and print(f"loss {loss.item():.6f}", flush=True)
model.save_pretrained(out)
