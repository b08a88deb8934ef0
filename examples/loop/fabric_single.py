"""A loop of Lightning Fabric on one GPU: python fabric_single.py MODEL ROWS.jsonl OUT"""

import json
import sys
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling

name, rows, out = sys.argv[1:]
fabric = Fabric(devices=1)
fabric.launch()
fabric.seed_everything(0)
tokenizer = AutoTokenizer.from_pretrained(name)
texts = [json.loads(row)["text"] for row in Path(rows).read_text().splitlines()]
samples = [tokenizer(text, truncation=True, max_length=512) for text in texts]
collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
loader = DataLoader(samples, batch_size=8, shuffle=True, collate_fn=collator)
loader = fabric.setup_dataloaders(loader)
model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).train()
model = fabric.setup_module(model)
optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-3))
for batch in loader:
    loss = model(**batch).loss
    fabric.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    fabric.print(f"loss {loss.item():.6f}", flush=True)
model.save_pretrained(out)
